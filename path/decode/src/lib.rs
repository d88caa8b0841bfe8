//! Station 6: sampling, stop rules, streaming.
