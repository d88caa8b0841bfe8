//! A tracked prompt, cut into pieces.

use std::ops::Range;

use hypic_domain::flow::Origin;
use hypic_domain::key::Scope;
use hypic_domain::serving::ModelFile;

use crate::error::SegmentError;
use crate::memo::{Memo, MemoKey};
use crate::split::split;
use crate::tokenise::Tokeniser;

/// A prompt's text and what is known of it. All ranges in bytes, sorted and disjoint.
#[derive(Default)]
pub(crate) struct Marked {
    pub(crate) text: String,
    /// What users wrote.
    pub(crate) user: Vec<Range<usize>>,
    /// Parts that may become segments.
    pub(crate) parts: Vec<(Origin, Range<usize>)>,
    /// Where the text of each turn begins.
    pub(crate) turns: Vec<usize>,
    /// Where the question begins.
    pub(crate) query: Option<usize>,
}

/// One piece of the text.
pub(crate) struct Cut {
    pub(crate) range: Range<usize>,
    pub(crate) ids: Vec<u32>,
    pub(crate) origin: Origin,
    pub(crate) live: bool,
}

/// Cuts `prompt` at the edges of its parts. Parts of fewer than `segment_min` tokens, and those that the seam
/// would take whole, stay live; longer ones than `segment_max` are split. What lies between segments is live,
/// and cut only where a turn begins that a prefix snapshot may stand before. The last piece is live.
pub(crate) fn cut(
    tokeniser: &Tokeniser,
    prompt: &Marked,
    model: &ModelFile,
    memo: &Memo,
    scope: &Scope,
) -> Result<Vec<Cut>, SegmentError> {
    let mut cutter = Cutter {
        tokeniser,
        prompt,
        model,
        controls: tokeniser.controls(&prompt.text, &prompt.user),
        cuts: Vec::new(),
        tokens: 0,
    };
    let mut segments = Vec::new();
    for (origin, range) in &prompt.parts {
        let user = prompt.user.iter().skip_while(|span| span.end <= range.start);
        let user = user.take_while(|span| span.start < range.end);
        let key =
            MemoKey::derive(scope, &prompt.text[range.clone()], user.map(|span| apart(span, range.start)));
        let slices = memo.recall(key, || cutter.segments(range.clone()))?;
        segments.extend(slices.iter().map(|(slice, ids)| Cut {
            range: range.start + slice.start..range.start + slice.end,
            ids: ids.clone(),
            origin: *origin,
            live: false,
        }));
    }
    if segments.last().is_some_and(|last: &Cut| last.range.end == prompt.text.len()) {
        segments.pop();
    }
    for segment in segments {
        cutter.live(segment.range.start)?;
        cutter.push(segment);
    }
    cutter.live(prompt.text.len())?;
    Ok(cutter.cuts)
}

type Slice = (Range<usize>, Vec<u32>);

struct Cutter<'a> {
    tokeniser: &'a Tokeniser,
    prompt: &'a Marked,
    model: &'a ModelFile,
    controls: Vec<Range<usize>>,
    cuts: Vec<Cut>,
    tokens: usize,
}

impl Cutter<'_> {
    /// The segments of one part, in bytes from its start; none if it is too short.
    fn segments(&self, part: Range<usize>) -> Result<Vec<Slice>, SegmentError> {
        let ids = self.tokeniser.encode(&self.prompt.text, part.clone(), &self.prompt.user)?;
        let mut slices = Vec::new();
        if ids.len() > self.max() {
            self.split(&part, part.clone(), self.max(), &mut slices)?;
        } else if ids.len() >= self.model.segment_min.0 as usize && ids.len() > self.model.seam.0 as usize {
            slices.push((0..part.len(), ids));
        }
        Ok(slices)
    }

    /// Splits `range` of `part` into pieces of about `target` tokens. Tokenised apart, a piece can have a few
    /// tokens more than it had in the whole: one that then passes the maximum is split again, with a lower
    /// target.
    fn split(
        &self,
        part: &Range<usize>,
        range: Range<usize>,
        target: usize,
        slices: &mut Vec<Slice>,
    ) -> Result<(), SegmentError> {
        let text = &self.prompt.text[range.clone()];
        let inside = self.controls.iter().skip_while(|control| control.end <= range.start);
        let inside = inside.take_while(|control| control.start < range.end);
        let fixed: Vec<_> = inside.map(|control| apart(control, range.start)).collect();
        let offsets = self.tokeniser.offsets(text)?;
        for piece in split(text, &offsets, &fixed, self.model.segment_min.0 as usize, target) {
            let piece = range.start + piece.start..range.start + piece.end;
            let ids = self.tokeniser.encode(&self.prompt.text, piece.clone(), &self.prompt.user)?;
            if ids.len() <= self.max() {
                // What the seam would take whole stays live.
                if ids.len() > self.model.seam.0 as usize {
                    slices.push((apart(&piece, part.start), ids));
                }
            } else if target > 1 {
                self.split(part, piece, target * 3 / 4, slices)?;
            }
        }
        Ok(())
    }

    fn max(&self) -> usize {
        self.model.segment_max.0 as usize
    }

    /// Live pieces up to `end`.
    fn live(&mut self, end: usize) -> Result<(), SegmentError> {
        let start = self.cuts.last().map_or(0, |cut| cut.range.end);
        let mut edges: Vec<usize> = self.turn_edges(start..end);
        edges.push(end);
        let (mut from, mut at, mut ids) = (start, start, Vec::new());
        for edge in edges {
            // A control token begins here, so tokenising up to it changes nothing.
            ids.extend(self.tokeniser.encode(&self.prompt.text, at..edge, &self.prompt.user)?);
            at = edge;
            if at == end || self.tokens + ids.len() >= self.model.snapshot_min.0 as usize {
                self.push_live(from..at, std::mem::take(&mut ids));
                from = at;
            }
        }
        Ok(())
    }

    fn push_live(&mut self, range: Range<usize>, ids: Vec<u32>) {
        if ids.is_empty() {
            return;
        }
        let asks = self.prompt.query.is_some_and(|query| range.contains(&query));
        let ends = range.end == self.prompt.text.len();
        let origin = if asks || ends { Origin::Query } else { Origin::Template };
        self.push(Cut { range, ids, origin, live: true });
    }

    fn push(&mut self, cut: Cut) {
        self.tokens += cut.ids.len();
        self.cuts.push(cut);
    }

    /// The control tokens in `range` with which a turn begins: the last ones before a turn's text.
    fn turn_edges(&self, range: Range<usize>) -> Vec<usize> {
        let (controls, user) = (&self.controls, &self.prompt.user);
        let edge = |text: &usize| {
            let control = controls[..controls.partition_point(|c| c.end <= *text)].last()?.start;
            // Nothing of another turn may stand between.
            let next = user.partition_point(|span| span.end <= control);
            let free = user.get(next).is_none_or(|span| span.start >= *text);
            (free && range.start < control && control < range.end).then_some(control)
        };
        let mut edges: Vec<usize> = self.prompt.turns.iter().filter_map(edge).collect();
        edges.dedup();
        edges
    }
}

/// `range` counted from `start`.
fn apart(range: &Range<usize>, start: usize) -> Range<usize> {
    range.start.saturating_sub(start)..range.end - start
}
