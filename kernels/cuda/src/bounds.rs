//! How far kernels may be from f64, relative in the Frobenius norm: one table, the same for fibers and for
//! the device.

/// Outputs and states of the token recurrence after a thousand tokens: fp32 arithmetic on the same bf16
/// inputs. The delta rule takes most of what it writes away again, so rounding grows relative to what is
/// left.
pub const RECURRENCE: f64 = 1e-5;
/// States after compose + seam, against f64 on the operands as stored: what the arithmetic adds.
pub const COMPOSE_STATE: f64 = 1e-6;
/// Outputs of the seam's rows in the same comparison.
pub const COMPOSE_OUTPUT: f64 = 5e-6;
/// One value stored as fp16: half a unit in the last of 11 bits.
pub const STORED_F16: f64 = 4.9e-4;
/// One value stored as a pair of fp16: 22 bits.
pub const STORED_PAIR: f64 = 5e-7;
/// Rows coded as eight-bit integers, against the largest value of the row: half a step of 127.
pub const STORED_INT8: f64 = 4e-3;
/// Rows coded as e4m3, value by value: half a unit in the last of 4 bits, or of the smallest subnormal.
pub const STORED_FP8: f64 = 6.3e-2;
/// Anything that leaves as bf16: half a unit in the last of 8 bits.
pub const BF16: f64 = 4e-3;
/// fp32 results of element-wise functions.
pub const ELEMENTWISE: f64 = 1e-6;
/// States, `T` and outputs of the chunk form: fp16 operands on the tensor cores, fp32 sums.
pub const CHUNKS: f64 = 2e-3;
/// Outputs of attention: rotated queries and keys, and the weights, as bf16 operands; fp32 sums.
pub const ATTENTION: f64 = 6e-3;
/// How near a draw's random number may lie to a boundary between two tokens, relative to the whole, for either to be
/// right: sums of weights in f64 in two orders.
pub const DRAW_BOUNDARY: f64 = 1e-12;
