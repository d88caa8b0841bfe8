//! Every kernel against f64, on fresh random data with slow decays and outputs pre-filled with NaN.
//!
//! Without a feature the kernels run as fibers, in several orders of the threads, and every order must give
//! the same bits. With `gpu-tests` the same bodies run on GPU 0.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod attention;
mod codes;
mod compose_seam;
mod conv_warm;
mod draw;
mod experts;
mod few;
mod fused;
mod gdn_chunks;
mod mla;
mod norm;
mod pack;
mod random;
mod recurrence;
mod rotate;
mod rows;
mod run;
mod sums;
mod truth;
