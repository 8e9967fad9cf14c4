-- Listens for wakes on the connection that runs nothing else.
listen fencepost
