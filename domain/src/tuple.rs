//! The words of the codec: formats and the parts of a tuple.

use serde::{Deserialize, Serialize};

/// Number format of stored values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dtype {
    /// 32-bit float.
    F32,
    /// 16-bit float with 10 bits of mantissa.
    F16,
    /// 16-bit float with 7 bits of mantissa.
    Bf16,
    /// 8-bit integer with one fp32 scale per row, the scale before the row.
    I8,
}

impl Dtype {
    /// Bytes of one value; the scales of [`Dtype::I8`] come on top.
    pub fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::I8 => 1,
        }
    }

    /// The name in files, flags and the identity.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::I8 => "i8",
        }
    }
}

/// Number formats of a tuple's parts and the order of values in them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TupleFormat {
    /// `T` of live heads.
    pub transition: Dtype,
    /// `S`.
    pub state: Dtype,
    /// Raw convolution inputs.
    pub tail: Dtype,
    /// Keys before rotation, and values.
    pub kv: Dtype,
    /// Kernel ABI: 0 = plain row-major `[heads, key, value]`, 1 = device tiles.
    pub layout: u32,
    /// Heads whose gate-only bound on `‖T‖` is under this store no `T`. 0 keeps every `T`.
    pub skip_below: f32,
}

impl Default for TupleFormat {
    fn default() -> Self {
        Self {
            transition: Dtype::F16,
            state: Dtype::F16,
            tail: Dtype::F32,
            kv: Dtype::F32,
            layout: 0,
            skip_below: 1e-3,
        }
    }
}

impl TupleFormat {
    /// Everything in fp32, every `T` kept: the format of exactness tests.
    pub const EXACT: Self = Self {
        transition: Dtype::F32,
        state: Dtype::F32,
        tail: Dtype::F32,
        kv: Dtype::F32,
        layout: 0,
        skip_below: 0.0,
    };
}

/// What one part of a tuple holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PartKind {
    /// `T` of the live heads, `[live heads, form]`.
    Transition,
    /// `S`, `[heads, key, value]`.
    State,
    /// Raw convolution inputs, oldest row first, `[K-1, channels]`.
    Tail,
    /// Keys before rotation, `[kv heads, body, key]`.
    Key,
    /// Values, `[kv heads, body, value]`.
    Value,
}

impl PartKind {
    /// The parts that a layer can have, in the order in which they lie.
    pub const ALL: [Self; 5] = [Self::Transition, Self::State, Self::Tail, Self::Key, Self::Value];
}

/// One part: where it lies in the tuple's bytes and what sum it must have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartSpec {
    /// Layer of the model.
    pub layer: u16,
    /// What the part holds.
    pub kind: PartKind,
    /// First byte, from the start of the tuple's parts.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// xxh3-64 of the bytes.
    pub sum: u64,
}
