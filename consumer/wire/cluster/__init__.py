"""Several servers on hosts with stores of their own, found through ZooKeeper as Canal's are. Needs the extra `zookeeper`."""
