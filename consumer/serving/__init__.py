"""What every server of ours shares: who may ask and TLS, HTTP, what is logged and counted of clients, how many of them there may be."""
