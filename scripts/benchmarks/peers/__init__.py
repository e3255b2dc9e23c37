"""What the project is compared with: other transports, logs, and whole pipelines."""
