"""The log behind the ring: the events of a store on disk, in files."""
