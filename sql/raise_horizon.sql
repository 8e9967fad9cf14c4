-- Lets ids use the new partitions once every producer knows of them. True when there is nothing left to raise.
select fencepost.raise_horizon() as raised
