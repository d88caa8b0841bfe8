//! The program of a prompt: live rows with the summaries of cached bodies between them.

use std::ops::Range;

use hypic_domain::flow::{Mode, Piece, PromptCounts};
use hypic_kernels::plan::{Rule, RunOp};

use crate::ComposeError;

/// A way to compose wrongly, for tests that prove that the right way matters. No request can name one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ablation {
    /// As designed.
    #[default]
    None,
    /// The summary covers the whole segment and is applied after the seam, which so acts twice.
    DoubleSeam,
    /// The convolution of every live piece starts from zeros.
    ColdConvolution,
}

/// A cached body at its place in the prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Body {
    /// Place of its segment in the prompt's pieces.
    pub piece: usize,
    /// Global position of its first token.
    pub start: u32,
    /// Tokens.
    pub len: u32,
}

/// One step of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Compute these rows of the program.
    Rows(Range<usize>),
    /// Apply the summary of `bodies[body]`.
    Apply {
        /// Place in the program's bodies.
        body: usize,
        /// How.
        rule: Rule,
    },
    /// Forget the convolution's tail.
    ClearTail,
}

/// A prompt as rows and summaries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Token ids of the live rows, in prompt order.
    pub ids: Vec<u32>,
    /// Their global positions, ascending.
    pub positions: Vec<u32>,
    /// What happens, in order. The `Rows` cover the rows exactly.
    pub steps: Vec<Step>,
    /// Bodies that are applied, in prompt order.
    pub bodies: Vec<Body>,
    /// Rows that are seams.
    pub seam: u32,
}

/// A part of a program that one step computes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Rows of the program.
    pub rows: Range<usize>,
    /// What a device does, with rows counted from the start of its step.
    pub ops: Vec<RunOp>,
    /// How many of the program's bodies, from the first, these rows may attend to.
    pub bodies: usize,
}

impl Program {
    /// The program of a prompt: segments longer than the seam `w` are composed where the mode composes; the
    /// rest is live, and so is always the last piece that has tokens.
    ///
    /// # Errors
    /// A prompt without tokens.
    pub fn of_prompt(
        pieces: &[Piece],
        mode: Mode,
        seam: u32,
        ablation: Ablation,
    ) -> Result<Self, ComposeError> {
        let last = pieces.iter().rposition(|piece| !piece.ids.is_empty()).ok_or(ComposeError::ReadPrompt)?;
        let rule = match mode {
            Mode::Add => Rule::Add,
            Mode::Last => Rule::Replace,
            Mode::Recompute | Mode::Prefix | Mode::Pic => Rule::Compose,
        };
        let mut program = Self::empty();
        let mut start = 0;
        for (place, piece) in pieces.iter().enumerate() {
            let len = piece.ids.len() as u32;
            let composed = mode.composes() && piece.key.is_some() && len > seam && place != last;
            let live = if composed { seam } else { len };
            program.push_rows(&piece.ids[..live as usize], start, ablation == Ablation::ColdConvolution);
            if composed {
                program.seam += seam;
                program.steps.push(Step::Apply { body: program.bodies.len(), rule });
                program.bodies.push(Body { piece: place, start: start + seam, len: len - seam });
            }
            start += len;
        }
        Ok(program)
    }

    pub(crate) fn empty() -> Self {
        Self { ids: Vec::new(), positions: Vec::new(), steps: Vec::new(), bodies: Vec::new(), seam: 0 }
    }

    /// Appends live rows; rows that follow rows are one run of them, unless the convolution is cut between.
    pub(crate) fn push_rows(&mut self, ids: &[u32], start: u32, cold: bool) {
        if ids.is_empty() {
            return;
        }
        let rows = self.ids.len()..self.ids.len() + ids.len();
        self.ids.extend_from_slice(ids);
        self.positions.extend((start..).take(ids.len()));
        if cold {
            self.steps.push(Step::ClearTail);
        }
        match self.steps.last_mut() {
            Some(Step::Rows(before)) => before.end = rows.end,
            _ => self.steps.push(Step::Rows(rows)),
        }
    }

    /// Live rows.
    pub fn rows(&self) -> usize {
        self.ids.len()
    }

    /// Tokens of the prompt.
    pub fn tokens(&self) -> u32 {
        self.rows() as u32 + self.bodies.iter().map(|body| body.len).sum::<u32>()
    }

    /// Rows, and so tokens, before the first body: what stands there is exact in every mode.
    pub fn exact_rows(&self) -> usize {
        self.bodies.first().map_or(self.rows(), |first| first.start as usize)
    }

    /// How the prompt's tokens are had, when `exact` of them come from a snapshot.
    pub fn counts(&self, exact: u32, built: impl Fn(&Body) -> bool) -> PromptCounts {
        let bodies = |was_built: bool| {
            self.bodies.iter().filter(|body| built(body) == was_built).map(|body| body.len).sum::<u32>()
        };
        PromptCounts {
            exact,
            hit: bodies(false),
            built: bodies(true),
            seam: self.seam,
            live: self.rows() as u32 - self.seam - exact,
        }
    }

    /// The next part: from row `from`, at most `budget` rows, and not over a row in `cuts` (ascending). Its
    /// first row is row `offset` of the step. Summaries right before `from` belong to it.
    pub fn slice(&self, from: usize, budget: usize, cuts: &[usize], offset: usize) -> Slice {
        let cut = cuts.iter().copied().find(|cut| *cut > from).unwrap_or(usize::MAX);
        let to = self.rows().min(from.saturating_add(budget)).min(cut);
        let mut slice = Slice { rows: from..to, ops: Vec::new(), bodies: 0 };
        let mut row = 0;
        for step in &self.steps {
            // Everything before row `from` is done, and a step at row `to` belongs to the next slice.
            let pending = row >= from && row < to;
            match step {
                Step::Rows(rows) => {
                    row = rows.end;
                    let part = rows.start.max(from)..rows.end.min(to);
                    if !part.is_empty() {
                        slice.ops.push(RunOp::Rows(part.start - from + offset..part.end - from + offset));
                    }
                }
                Step::Apply { body, rule } => {
                    if pending {
                        slice.ops.push(RunOp::Apply { body: *body, rule: *rule });
                    }
                    if row < to {
                        slice.bodies = body + 1;
                    }
                }
                Step::ClearTail if pending => slice.ops.push(RunOp::ClearTail),
                Step::ClearTail => {}
            }
        }
        slice
    }
}

#[cfg(test)]
mod tests;
