//! Station 3: where each segment comes from, as a pure function.
