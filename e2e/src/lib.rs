//! Fleets of real processes, and the demo.
