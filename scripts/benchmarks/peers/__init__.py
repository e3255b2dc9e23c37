"""What the project is measured beside: other transports, logs, and whole pipelines."""
