"""What reads a server: binlogs, snapshots, comparisons."""
