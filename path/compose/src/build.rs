//! The program of a build: one whole segment from a zero state at position 0, its body recorded.

use std::ops::Range;

use crate::ComposeError;
use crate::program::{Ablation, Program, Slice};

/// A segment to be built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Build {
    /// All of its tokens, live.
    pub program: Program,
    /// Rows whose summary is recorded.
    pub record: Range<usize>,
    /// Tokens of the body, whose keys and values are kept.
    pub body: usize,
}

impl Build {
    /// A build of `ids` behind a seam of `seam` tokens.
    ///
    /// # Errors
    /// A segment that is no longer than its seam.
    pub fn of_segment(ids: &[u32], seam: u32, ablation: Ablation) -> Result<Self, ComposeError> {
        let seam_rows = seam as usize;
        if ids.len() <= seam_rows {
            return Err(ComposeError::BuildSegment { tokens: ids.len(), seam });
        }
        let mut program = Program::empty();
        program.push_rows(ids, 0, false);
        let recorded = if ablation == Ablation::DoubleSeam { 0 } else { seam_rows };
        Ok(Self { program, record: recorded..ids.len(), body: ids.len() - seam_rows })
    }

    /// The recorded rows among those of a slice, counted from the start of its step, whose row `offset` is
    /// the slice's first.
    pub fn recorded(&self, slice: &Slice, offset: usize) -> Range<usize> {
        let start = self.record.start.clamp(slice.rows.start, slice.rows.end);
        start - slice.rows.start + offset..slice.rows.end - slice.rows.start + offset
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_computes_the_whole_segment_and_records_its_body() {
        let build = Build::of_segment(&[7; 20], 8, Ablation::None).unwrap();
        assert_eq!((build.program.rows(), build.record.clone(), build.body), (20, 8..20, 12));
        let recorded: Vec<_> = [(0, 5), (5, 5), (10, 10)]
            .map(|(from, budget)| build.recorded(&build.program.slice(from, budget, &[], 3), 3))
            .into();
        assert_eq!(recorded, [8..8, 6..8, 3..13]);
    }

    #[test]
    fn the_double_seam_records_everything_and_keeps_the_body() {
        let build = Build::of_segment(&[7; 20], 8, Ablation::DoubleSeam).unwrap();
        assert_eq!((build.record, build.body), (0..20, 12));
    }

    #[test]
    fn a_segment_within_its_seam_has_no_build() {
        let refused = Build::of_segment(&[7; 8], 8, Ablation::None);
        assert_eq!(refused, Err(ComposeError::BuildSegment { tokens: 8, seam: 8 }));
    }
}
