//! What work and moves cost, as each agent measured it.

use hypic_domain::unit::{Bytes, Millis, Tokens};

use crate::Error;

/// Milliseconds that an agent needs for a batch of `n` tokens: piecewise linear, never falling.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    points: Vec<(u32, f64)>,
}

impl Curve {
    /// The curve through measured points. Before the first it is flat: a small batch costs one pass over the
    /// weights. After the last it goes on at the last slope. No tokens cost nothing.
    ///
    /// # Errors
    /// [`Error::ReadCurve`] if there is no point, or one is negative, not finite, not later than the one
    /// before or cheaper.
    pub fn new(points: Vec<(Tokens, Millis)>) -> Result<Self, Error> {
        let points: Vec<(u32, f64)> = points.into_iter().map(|(tokens, ms)| (tokens.0, ms.0)).collect();
        let mut before: Option<(u32, f64)> = None;
        for (point, &(tokens, ms)) in points.iter().enumerate() {
            let rises = before.is_none_or(|(t, m)| tokens > t && ms >= m);
            if !(rises && ms.is_finite() && ms >= 0.0) {
                return Err(Error::ReadCurve { point });
            }
            before = Some((tokens, ms));
        }
        if points.is_empty() {
            return Err(Error::ReadCurve { point: 0 });
        }
        Ok(Self { points })
    }

    /// A fixed part per batch and a part per token.
    ///
    /// # Errors
    /// [`Error::ReadCurve`] if one of them is negative or not finite.
    pub fn affine(fixed: Millis, per_token: Millis) -> Result<Self, Error> {
        Self::new(vec![(Tokens(0), fixed), (Tokens(1), fixed + per_token)])
    }

    /// Milliseconds of a batch.
    pub fn ms(&self, tokens: u64) -> f64 {
        if tokens == 0 {
            return 0.0;
        }
        let later = self.points.partition_point(|(t, _)| u64::from(*t) < tokens);
        let (low, high) = match (later, self.points.len()) {
            (0, _) => return self.points[0].1,
            // One point only: in proportion to it.
            (_, 1) => ((0, 0.0), self.points[0]),
            (later, len) => {
                let high = later.min(len - 1);
                (self.points[high - 1], self.points[high])
            }
        };
        let slope = (high.1 - low.1) / f64::from(high.0 - low.0);
        low.1 + slope * (tokens - u64::from(low.0)) as f64
    }
}

/// Milliseconds to move bytes: a fixed part per move and a part per byte.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Link {
    /// Per move.
    pub fixed: Millis,
    /// Per byte, in milliseconds.
    pub per_byte: f64,
}

impl Link {
    /// A link of so many GB/s.
    pub fn of_speed(fixed: Millis, gigabytes_per_second: f64) -> Self {
        Self { fixed, per_byte: 1e-6 / gigabytes_per_second }
    }

    /// Time of one move.
    pub fn ms(&self, bytes: Bytes) -> f64 {
        self.fixed.0 + self.per_byte * bytes.0 as f64
    }

    /// Moves from one end to the other: the slower end counts.
    pub fn and(&self, other: &Self) -> Self {
        Self { fixed: Millis(self.fixed.0.max(other.fixed.0)), per_byte: self.per_byte.max(other.per_byte) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_goes_through_its_points_and_beyond() {
        let at = |tokens, ms| (Tokens(tokens), Millis(ms));
        let curve = Curve::new(vec![at(100, 4.0), at(200, 4.0), at(1000, 12.0)]).unwrap();
        let expected = [(0, 0.0), (1, 4.0), (100, 4.0), (150, 4.0), (600, 8.0), (1000, 12.0), (2000, 22.0)];
        for (tokens, ms) in expected {
            assert!((curve.ms(tokens) - ms).abs() < 1e-12, "{tokens}");
        }
        let one = Curve::new(vec![at(100, 4.0)]).unwrap();
        assert_eq!((one.ms(50), one.ms(200)), (4.0, 8.0));
        let affine = Curve::affine(Millis(2.0), Millis(0.5)).unwrap();
        assert_eq!((affine.ms(0), affine.ms(1), affine.ms(10)), (0.0, 2.5, 7.0));
    }

    #[test]
    fn points_that_are_no_curve_are_refused() {
        let at = |tokens, ms| (Tokens(tokens), Millis(ms));
        for (points, point) in [
            (vec![], 0),
            (vec![at(1, f64::NAN)], 0),
            (vec![at(1, -1.0)], 0),
            (vec![at(1, 2.0), at(1, 3.0)], 1),
            (vec![at(1, 2.0), at(2, 3.0), at(3, 1.0)], 2),
        ] {
            assert_eq!(Curve::new(points), Err(Error::ReadCurve { point }));
        }
    }
}
