//! Station 2: segment key to holders.
