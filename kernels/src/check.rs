//! What must hold of a plan before a mixer moves any state: the same for every device.

use crate::op::{Device, OpError};
use crate::plan::{Plan, Run, RunOp};

/// Checks the programs of a step for a linear layer: every run has one of `slots` slots to itself, its rows follow
/// one another, and the bodies that it applies have arrived.
///
/// # Errors
/// [`OpError::Shape`], [`OpError::NotArrived`].
pub fn programs<D: Device>(layer: usize, plan: &Plan<D>, slots: usize) -> Result<(), OpError> {
    const OP: &str = "linear_mixer";
    let mut next = 0;
    let mut taken = vec![false; slots];
    for run in &plan.runs {
        match taken.get_mut(run.slot) {
            Some(taken) if !*taken => *taken = true,
            _ => return Err(OpError::shape(OP, "a slot of its own for each run", run.slot)),
        }
        for op in &run.ops {
            match op {
                RunOp::Rows(range) => {
                    equal(OP, "next row", next, range.start)?;
                    next = range.end;
                }
                RunOp::Apply { body, .. } => {
                    body_of(OP, run, *body, layer)?;
                }
                RunOp::ClearTail => {}
            }
        }
        equal(OP, "rows of the program", next, run.rows.end)?;
    }
    equal(OP, "rows of all runs", plan.ids.len(), next)
}

/// One layer of a body of a run, and its tokens.
///
/// # Errors
/// [`OpError::Shape`] where the run has no such body, [`OpError::NotArrived`] where the layer is still on its way.
pub fn body_of<'a, D: Device>(
    op: &'static str,
    run: &'a Run<D>,
    body: usize,
    layer: usize,
) -> Result<(&'a D::LayerParts, usize), OpError> {
    let placed = run.context.bodies.get(body).ok_or_else(|| OpError::shape(op, "a body of the run", body))?;
    let parts = placed.layers.layer(layer).ok_or(OpError::NotArrived { layer })?;
    Ok((parts, placed.len as usize))
}

/// The pool that a step's contexts lie in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Pages of the pool.
    pub pages: usize,
    /// Tokens of a page.
    pub page_tokens: usize,
    /// Positions that the table of angles reaches.
    pub positions: usize,
}

/// Checks the contexts of a step for a full layer: pages for every live token, positions that have angles, bodies
/// that have arrived.
///
/// # Errors
/// [`OpError::Shape`], [`OpError::NotArrived`].
pub fn contexts<D: Device>(layer: usize, plan: &Plan<D>, room: Room) -> Result<(), OpError> {
    const OP: &str = "full_mixer";
    let mut next = 0;
    for run in &plan.runs {
        equal(OP, "next row", next, run.rows.start)?;
        next = run.rows.end;
        let context = &run.context;
        if context.live.len() < run.rows.len() || context.pages.len() * room.page_tokens < context.live.len()
        {
            let found = format!("{} live tokens, {} pages", context.live.len(), context.pages.len());
            return Err(OpError::shape(OP, format!("room for {} rows", run.rows.len()), found));
        }
        if let Some(page) = context.pages.iter().find(|&&page| page >= room.pages) {
            return Err(OpError::shape(OP, format!("a page below {}", room.pages), page));
        }
        let last = context.live.last().copied().unwrap_or(0);
        let last = context.bodies.iter().map(|body| body.start + body.len).max().unwrap_or(0).max(last + 1);
        if last as usize > room.positions {
            return Err(OpError::shape(OP, format!("positions below {}", room.positions), last));
        }
        for body in 0..context.bodies.len() {
            body_of(OP, run, body, layer)?;
        }
    }
    equal(OP, "rows of all runs", plan.ids.len(), next)
}

/// A shape error unless the numbers are equal.
///
/// # Errors
/// [`OpError::Shape`].
pub fn equal(op: &'static str, what: &str, expected: usize, found: usize) -> Result<(), OpError> {
    if expected == found { Ok(()) } else { Err(OpError::shape(op, format!("{what} {expected}"), found)) }
}
