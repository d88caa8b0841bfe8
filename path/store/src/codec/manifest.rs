//! The manifest: what a tuple is, and where its parts lie.

use std::sync::Arc;

use hypic_domain::family::Family;
use hypic_domain::key::{Identity, SegmentKey};
use hypic_domain::model::{FullShape, LayerSpec, LinearShape};
use hypic_domain::tuple::{Dtype, PartKind, PartSpec, TupleFormat};
use hypic_domain::unit::{Bytes, Tokens};
use xxhash_rust::xxh3::xxh3_64;

use crate::codec::fields::Fields;
use crate::error::StoreError;

const MAGIC: [u8; 8] = *b"hypic-tp";

/// The version that is written.
pub const VERSION: u16 = 1;
/// The oldest version that is read: the one before the written one, of which there is none yet.
pub const OLDEST_VERSION: u16 = 1;

const DTYPES: [Dtype; 4] = [Dtype::F32, Dtype::F16, Dtype::Bf16, Dtype::I8];

/// What a tuple is, known before any of it is computed.
#[derive(Clone, Debug, PartialEq)]
pub struct TupleHead {
    /// All that makes tuples compatible.
    pub identity: Identity,
    /// The key under which it is stored.
    pub key: SegmentKey,
    /// Grows when the same key is built anew; carried, never compared.
    pub generation: u32,
    /// Token ids of the whole segment, seam included: compared on a hit.
    pub ids: Arc<[u32]>,
    /// Tokens of the body, at least 1.
    pub body: Tokens,
    /// The model's token mixers.
    pub layers: Arc<[LayerSpec]>,
    /// Number formats.
    pub format: TupleFormat,
}

impl TupleHead {
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        let wrong = |what| Err(StoreError::ReadManifest { what });
        if self.body.0 == 0 || self.body.0 as usize > self.ids.len() {
            return wrong("the body is not part of the segment");
        }
        if !self.format.skip_below.is_finite() {
            return wrong("the threshold is not finite");
        }
        if u16::try_from(self.layers.len()).is_err() {
            return wrong("too many layers");
        }
        Ok(())
    }
}

/// A head and the places and sums of its parts. Every instance that was decoded is consistent.
#[derive(Clone, Debug, PartialEq)]
pub struct Manifest {
    /// What the tuple is.
    pub head: TupleHead,
    /// Its parts, layer-major, one behind the other from offset 0.
    pub parts: Vec<PartSpec>,
}

impl Manifest {
    /// Bytes of all parts together.
    pub fn part_bytes(&self) -> Bytes {
        self.parts.iter().map(|part| Bytes(part.len)).sum()
    }

    /// The manifest as bytes, its own sum at the end.
    pub fn encode(&self) -> Vec<u8> {
        let head = &self.head;
        let mut out =
            Vec::with_capacity(160 + 4 * head.ids.len() + 25 * head.layers.len() + 19 * self.parts.len());
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&head.identity.0);
        out.extend_from_slice(&head.key.0);
        word(&mut out, head.generation);
        word(&mut out, head.body.0);
        word(&mut out, head.ids.len() as u32);
        head.ids.iter().for_each(|id| word(&mut out, *id));
        let TupleFormat { transition, state, tail, kv, layout, skip_below } = head.format;
        out.extend([transition, state, tail, kv].map(dtype_code));
        word(&mut out, layout);
        word(&mut out, skip_below.to_bits());
        word(&mut out, head.layers.len() as u32);
        head.layers.iter().for_each(|layer| write_layer(&mut out, layer));
        word(&mut out, self.parts.len() as u32);
        for part in &self.parts {
            out.extend_from_slice(&part.layer.to_le_bytes());
            out.push(kind_code(part.kind));
            out.extend_from_slice(&part.len.to_le_bytes());
            out.extend_from_slice(&part.sum.to_le_bytes());
        }
        let sum = xxh3_64(&out);
        out.extend_from_slice(&sum.to_le_bytes());
        out
    }

    /// Reads a manifest and checks that its parts are exactly those that its head asks for.
    ///
    /// # Errors
    /// [`StoreError::ReadVersion`] for another version, [`StoreError::ReadManifest`] for everything else.
    pub fn decode(bytes: &[u8]) -> Result<Self, StoreError> {
        let wrong = |what| StoreError::ReadManifest { what };
        let (content, sum) = bytes.split_last_chunk::<8>().ok_or(wrong("too short"))?;
        let mut fields = Fields(content);
        if fields.array()? != MAGIC {
            return Err(wrong("no magic"));
        }
        match fields.u16()? {
            VERSION => {}
            found => {
                return Err(StoreError::ReadVersion { found, oldest: OLDEST_VERSION, newest: VERSION });
            }
        }
        if u64::from_le_bytes(*sum) != xxh3_64(content) {
            return Err(wrong("wrong sum"));
        }
        let manifest = read_version_1(&mut fields)?;
        if !fields.0.is_empty() {
            return Err(wrong("bytes behind the end"));
        }
        manifest.check()?;
        Ok(manifest)
    }

    /// Parts are in order, one behind the other, none is missing and each has a length that fits.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        self.head.check()?;
        let wrong = |what| StoreError::ReadManifest { what };
        let mut given = self.parts.iter().peekable();
        let mut end = 0u64;
        for layer in 0..self.head.layers.len() as u16 {
            for kind in PartKind::ALL {
                if self.head.shape(layer, kind).is_none() {
                    continue;
                }
                match given.next_if(|part| part.layer == layer && part.kind == kind) {
                    Some(part) if part.offset == end && self.head.fits(layer, kind, part.len) => {
                        end = end.checked_add(part.len).ok_or(wrong("parts overflow"))?;
                    }
                    Some(_) => return Err(wrong("a part has a wrong place or length")),
                    // No head of the layer has a `T`.
                    None if kind == PartKind::Transition => {}
                    None => return Err(wrong("a part is missing")),
                }
            }
        }
        if given.next().is_some() {
            return Err(wrong("a part too many"));
        }
        Ok(())
    }
}

fn read_version_1(fields: &mut Fields<'_>) -> Result<Manifest, StoreError> {
    let identity = Identity(fields.array()?);
    let key = SegmentKey(fields.array()?);
    let generation = fields.u32()?;
    let body = Tokens(fields.u32()?);
    let count = fields.width()?;
    let ids = fields.u32s(count)?.into();
    let format = TupleFormat {
        transition: read_dtype(fields)?,
        state: read_dtype(fields)?,
        tail: read_dtype(fields)?,
        kv: read_dtype(fields)?,
        layout: fields.u32()?,
        skip_below: f32::from_bits(fields.u32()?),
    };
    // Grown entry by entry: a forged count ends with the bytes, not with an allocation.
    let layers = (0..fields.u32()?).map(|_| read_layer(fields)).collect::<Result<Arc<[_]>, _>>()?;
    let mut offset = 0u64;
    let parts = (0..fields.u32()?).map(|_| {
        let (layer, kind) = (fields.u16()?, read_kind(fields)?);
        let (len, sum) = (fields.u64()?, fields.u64()?);
        let spec = PartSpec { layer, kind, offset, len, sum };
        offset = offset.checked_add(len).ok_or(StoreError::ReadManifest { what: "parts overflow" })?;
        Ok(spec)
    });
    let parts = parts.collect::<Result<Vec<_>, StoreError>>()?;
    Ok(Manifest { head: TupleHead { identity, key, generation, ids, body, layers, format }, parts })
}

fn word(out: &mut Vec<u8>, word: u32) {
    out.extend_from_slice(&word.to_le_bytes());
}

fn write_layer(out: &mut Vec<u8>, layer: &LayerSpec) {
    match *layer {
        LayerSpec::Linear(LinearShape { family, key_heads, heads, key, value, conv_kernel }) => {
            out.extend([0, family_code(family)]);
            [key_heads, heads, key, value, conv_kernel].iter().for_each(|n| word(out, *n as u32));
        }
        LayerSpec::Full(FullShape { heads, kv_heads, key, value, rotary }) => {
            out.push(1);
            [heads, kv_heads, key, value, rotary].iter().for_each(|n| word(out, *n as u32));
        }
    }
}

fn read_layer(fields: &mut Fields<'_>) -> Result<LayerSpec, StoreError> {
    Ok(match fields.u8()? {
        0 => {
            let code = fields.u8()?;
            let family = Family::ALL.into_iter().find(|family| family_code(*family) == code);
            LayerSpec::Linear(LinearShape {
                family: family.ok_or(StoreError::ReadManifest { what: "unknown family" })?,
                key_heads: fields.width()?,
                heads: fields.width()?,
                key: fields.width()?,
                value: fields.width()?,
                conv_kernel: fields.width()?,
            })
        }
        1 => LayerSpec::Full(FullShape {
            heads: fields.width()?,
            kv_heads: fields.width()?,
            key: fields.width()?,
            value: fields.width()?,
            rotary: fields.width()?,
        }),
        _ => return Err(StoreError::ReadManifest { what: "unknown layer" }),
    })
}

/// Codes are written out, so that a new variant in the middle of an enum moves no byte.
fn family_code(family: Family) -> u8 {
    match family {
        Family::Linear => 0,
        Family::Retention => 1,
        Family::Mamba2 => 2,
        Family::Gla => 3,
        Family::DeltaNet => 4,
        Family::Gdn => 5,
        Family::Kda => 6,
    }
}

fn dtype_code(dtype: Dtype) -> u8 {
    match dtype {
        Dtype::F32 => 0,
        Dtype::F16 => 1,
        Dtype::Bf16 => 2,
        Dtype::I8 => 3,
    }
}

fn read_dtype(fields: &mut Fields<'_>) -> Result<Dtype, StoreError> {
    let code = fields.u8()?;
    let dtype = DTYPES.into_iter().find(|dtype| dtype_code(*dtype) == code);
    dtype.ok_or(StoreError::ReadManifest { what: "unknown number format" })
}

fn kind_code(kind: PartKind) -> u8 {
    match kind {
        PartKind::Transition => 0,
        PartKind::State => 1,
        PartKind::Tail => 2,
        PartKind::Key => 3,
        PartKind::Value => 4,
    }
}

fn read_kind(fields: &mut Fields<'_>) -> Result<PartKind, StoreError> {
    let code = fields.u8()?;
    let kind = PartKind::ALL.into_iter().find(|kind| kind_code(*kind) == code);
    kind.ok_or(StoreError::ReadManifest { what: "unknown part" })
}
