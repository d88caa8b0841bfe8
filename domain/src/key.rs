//! The key of a segment: a digest of everything its tuple depends on.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::model::ModelSpec;
use crate::tuple::TupleFormat;

/// 256-bit key of one segment: identity, isolation scope and token ids.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentKey(pub [u8; 32]);

/// Digest of all that makes tuples compatible.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Identity(pub [u8; 32]);

/// Who shares tuples. Derived by the router from the authenticated tenant, never from a request's body.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Scope(pub [u8; 32]);

/// What goes into an [`Identity`].
pub struct IdentityInput<'a> {
    /// BLAKE3 of the weights, in a canonical order.
    pub weights: [u8; 32],
    /// BLAKE3 of the tokenizer file.
    pub tokenizer: [u8; 32],
    /// Canonical text of everything in the configuration that changes results (rope, norms, conv, …).
    pub architecture: &'a str,
    /// Layers and shapes.
    pub spec: &'a ModelSpec,
    /// Number formats and kernel ABI.
    pub format: &'a TupleFormat,
    /// Width of the seam in tokens, `w`.
    pub seam: u32,
    /// Digest of a LoRA, where one is applied.
    pub lora: Option<[u8; 32]>,
}

impl Identity {
    /// The digest of `input`, domain-separated and length-prefixed, so that no two inputs collide.
    pub fn derive(input: &IdentityInput<'_>) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("hypic 2026 identity v1");
        field(&mut hasher, &input.weights);
        field(&mut hasher, &input.tokenizer);
        field(&mut hasher, input.architecture.as_bytes());
        field(&mut hasher, format!("{:?}", input.spec.layers).as_bytes());
        let f = input.format;
        let format = format!(
            "T={} S={} tail={} kv={} layout={} skip={:08x}",
            f.transition.name(),
            f.state.name(),
            f.tail.name(),
            f.kv.name(),
            f.layout,
            f.skip_below.to_bits()
        );
        field(&mut hasher, format.as_bytes());
        field(&mut hasher, &input.seam.to_le_bytes());
        field(&mut hasher, input.lora.as_ref().map_or(&[][..], |digest| &digest[..]));
        Self(*hasher.finalize().as_bytes())
    }
}

impl Scope {
    /// Tuples that every tenant may use: only by explicit policy.
    pub const PUBLIC: Self = Self([0; 32]);

    /// The scope of one tenant: a keyed digest (BLAKE3's keyed mode is a MAC) under the fleet's secret.
    pub fn of_tenant(secret: &[u8; 32], tenant: &str) -> Self {
        let mut hasher = blake3::Hasher::new_keyed(secret);
        field(&mut hasher, b"hypic 2026 scope v1");
        field(&mut hasher, tenant.as_bytes());
        Self(*hasher.finalize().as_bytes())
    }
}

impl SegmentKey {
    /// The key of `ids` under an identity and a scope.
    pub fn derive(identity: &Identity, scope: &Scope, ids: &[u32]) -> Self {
        Self(digest("hypic 2026 segment v1", identity, scope, ids))
    }

    /// The key of a prefix snapshot: the whole token history up to a boundary, and its provenance.
    pub fn derive_snapshot(identity: &Identity, scope: &Scope, ids: &[u32], provenance: &str) -> Self {
        Self(digest(&format!("hypic 2026 snapshot v1 {provenance}"), identity, scope, ids))
    }

    /// The first two bytes as a slot number below 4096.
    pub fn slot(&self) -> u16 {
        u16::from_le_bytes([self.0[0], self.0[1]]) & 0x0fff
    }
}

fn digest(domain: &str, identity: &Identity, scope: &Scope, ids: &[u32]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new_derive_key(domain);
    hasher.update(&identity.0);
    hasher.update(&scope.0);
    hasher.update(&(ids.len() as u64).to_le_bytes());
    // One update: four bytes at a time the hasher is ten times slower.
    let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    hasher.update(&bytes);
    *hasher.finalize().as_bytes()
}

fn field(hasher: &mut blake3::Hasher, bytes: &[u8]) {
    hasher.update(&(bytes.len() as u64).to_le_bytes());
    hasher.update(bytes);
}

macro_rules! hex_digest {
    ($name:ident) => {
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&hex::encode(self.0))
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), &hex::encode(&self.0[..6]))
            }
        }
        impl Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&hex::encode(self.0))
            }
        }
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                let mut bytes = [0; 32];
                hex::decode_to_slice(&text, &mut bytes).map_err(serde::de::Error::custom)?;
                Ok(Self(bytes))
            }
        }
    };
}
hex_digest!(SegmentKey);
hex_digest!(Identity);

impl fmt::Debug for Scope {
    // A scope is a secret of its tenant: who knows it can probe the tenant's cache.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Self::PUBLIC { "Scope(public)" } else { "Scope(…)" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_depends_on_identity_scope_and_every_id() {
        let (a, b) = (Identity([1; 32]), Identity([2; 32]));
        let secret = [7; 32];
        let (one, two) = (Scope::of_tenant(&secret, "one"), Scope::of_tenant(&secret, "two"));
        let key = SegmentKey::derive(&a, &one, &[1, 2, 3]);
        assert_eq!(key, SegmentKey::derive(&a, &one, &[1, 2, 3]));
        assert_ne!(key, SegmentKey::derive(&b, &one, &[1, 2, 3]));
        assert_ne!(key, SegmentKey::derive(&a, &two, &[1, 2, 3]));
        assert_ne!(key, SegmentKey::derive(&a, &one, &[1, 2, 4]));
        assert_ne!(key, SegmentKey::derive(&a, &one, &[1, 2]));
        assert_ne!(key, SegmentKey::derive_snapshot(&a, &one, &[1, 2, 3], "exact"));
        assert!(key.slot() < 4096);
    }

    #[test]
    fn a_scope_does_not_print_itself() {
        assert_eq!(format!("{:?}", Scope::of_tenant(&[7; 32], "one")), "Scope(…)");
    }
}
