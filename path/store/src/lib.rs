//! The tiers in which tuples lie, and the codec of their bytes.
