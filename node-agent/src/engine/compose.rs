//! Compositions fly: each in steps of its own, layer by layer as its tuples arrive.

use hypic_kernels::op::Device;

use super::EngineError;
use super::core::Core;
use super::edge::Age;
use super::step::Step;

impl<D: Device> Core<D> {
    /// Moves the oldest composition that can move, as far as its tuples are here. One a turn, so that answers
    /// keep their pace. False when none could move.
    pub(super) fn fly(&mut self) -> bool {
        let composing: Vec<Age> = self
            .running
            .iter()
            .filter(|(_, sequence)| sequence.is_composing() && sequence.has_room())
            .map(|(age, _)| *age)
            .collect();
        composing.into_iter().any(|age| self.take_off(age) && self.advance(age))
    }

    /// Whether a composition is in the air, if need be after packing its next rows.
    fn take_off(&mut self, age: Age) -> bool {
        let Some(sequence) = self.running.get(&age) else { return false };
        if sequence.flight.is_some() {
            return true;
        }
        let share = sequence.share(self.config.rows, 0);
        if sequence.layers_here(share.bodies, self.layers.len()) == 0 {
            return false;
        }
        if !self.make_room_for(age, share.ids.len()) {
            return false;
        }
        self.give();
        self.counters.rows_composed += share.ids.len() as u64;
        let Some(sequence) = self.running.get_mut(&age) else { return false };
        let mut flight = Step::new();
        sequence.take_part(&mut flight, share);
        sequence.flight = Some(flight);
        true
    }

    /// Computes the layers whose tuples are here. False when there is none.
    fn advance(&mut self, age: Age) -> bool {
        let spec = self.model.spec();
        let Some(sequence) = self.running.get_mut(&age) else { return false };
        let Some(mut flight) = sequence.flight.take() else { return false };
        let bodies = flight.plan.runs.first().map_or(0, |run| run.context.bodies.len());
        let here = sequence.layers_here(bodies, spec.layers.len());
        let moved = flight.layer() < here;
        let mut outcome = Ok(());
        while flight.layer() < here && outcome.is_ok() {
            outcome = flight.advance(&self.device, &*self.model, &mut self.memory);
        }
        let logits = outcome.and_then(|()| {
            if !flight.is_done(spec) {
                sequence.flight = Some(flight);
                return Ok(None);
            }
            let end = sequence.take_back(flight.plan.runs.pop());
            let last: Vec<_> = end.zip(sequence.need()).into_iter().collect();
            let logits = flight.logits(&self.device, &*self.model, &last)?;
            Ok(Some(logits.into_iter().next()))
        });
        match logits {
            Ok(None) => {}
            Ok(Some(logits)) => {
                self.counters.steps += 1;
                if logits.is_some() {
                    self.settle();
                }
                self.computed(age, logits);
            }
            Err(source) => {
                let request = sequence.prompt.request;
                self.fail_request(request, &EngineError::run_step(source));
                return true;
            }
        }
        moved
    }
}
