"""What all our servers share: login and TLS, HTTP, what is logged and counted of clients, and limits of their number."""
