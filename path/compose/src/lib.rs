//! Station 5: gathered segments into rows and a per-layer program.
