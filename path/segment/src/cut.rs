//! A tracked prompt, cut into pieces.

use std::ops::Range;

use hypic_domain::flow::Origin;
use hypic_domain::serving::ModelFile;

use crate::error::SegmentError;
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
        cutter.segments(*origin, range.clone(), &mut segments)?;
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

struct Cutter<'a> {
    tokeniser: &'a Tokeniser,
    prompt: &'a Marked,
    model: &'a ModelFile,
    controls: Vec<Range<usize>>,
    cuts: Vec<Cut>,
    tokens: usize,
}

impl Cutter<'_> {
    /// The segments of one part, if it is long enough.
    fn segments(
        &self,
        origin: Origin,
        range: Range<usize>,
        segments: &mut Vec<Cut>,
    ) -> Result<(), SegmentError> {
        let ids = self.tokeniser.encode(&self.prompt.text, range.clone(), &self.prompt.user)?;
        if ids.len() > self.model.segment_max.0 as usize {
            return self.split(origin, range, self.model.segment_max.0 as usize, segments);
        }
        if ids.len() >= self.model.segment_min.0 as usize && ids.len() > self.model.seam.0 as usize {
            segments.push(Cut { range, ids, origin, live: false });
        }
        Ok(())
    }

    /// Splits a part into pieces of about `target` tokens. Tokenised apart, a piece can have a few tokens more
    /// than it had in the whole: one that then passes the maximum is split again, with a lower target.
    fn split(
        &self,
        origin: Origin,
        range: Range<usize>,
        target: usize,
        segments: &mut Vec<Cut>,
    ) -> Result<(), SegmentError> {
        let text = &self.prompt.text[range.clone()];
        let inside = |control: &Range<usize>| {
            let shifted = control.start.saturating_sub(range.start)..control.end.saturating_sub(range.start);
            (shifted.end > 0 && shifted.start < text.len()).then_some(shifted)
        };
        let fixed: Vec<_> = self.controls.iter().filter_map(inside).collect();
        let offsets = self.tokeniser.offsets(text)?;
        let pieces = split(text, &offsets, &fixed, self.model.segment_min.0 as usize, target);
        let whole = pieces.len() == 1;
        for piece in pieces {
            let piece = range.start + piece.start..range.start + piece.end;
            let ids = self.tokeniser.encode(&self.prompt.text, piece.clone(), &self.prompt.user)?;
            if ids.len() <= self.model.segment_max.0 as usize {
                if ids.len() > self.model.seam.0 as usize {
                    segments.push(Cut { range: piece, ids, origin, live: false });
                }
            } else if !whole || target > 1 {
                self.split(origin, piece, (target * 3 / 4).max(1), segments)?;
            }
        }
        Ok(())
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
