"Look into a model while it trains, and log what happens"
