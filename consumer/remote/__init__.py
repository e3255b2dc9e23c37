"""Stores on other hosts, through Arrow Flight: what a `Consumer` of a URL reads from. Needs the extra `arrow`."""
