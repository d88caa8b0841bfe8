//! Who takes part in a step, and what it computes.

use hypic_domain::key::SegmentKey;
use hypic_domain::logits::{Logits, Need};
use hypic_kernels::op::Device;

use super::EngineError;
use super::core::Core;
use super::edge::Age;
use super::sequence::Sequence;
use super::step::Step;

impl<D: Device> Core<D> {
    /// Computes one step: a row of every answer, and prompts and builds up to the budget, oldest first.
    pub(super) fn step(&mut self) -> bool {
        let mut budget = self.config.rows;
        let decoding = |sequence: &Sequence<D>| sequence.is_decoding() && sequence.has_room();
        let mut shares: Vec<(Age, usize)> = self
            .running
            .iter()
            .filter(|(_, sequence)| decoding(sequence))
            .map(|(age, _)| (*age, 1))
            .collect();
        let mut prefills: Vec<(Age, Option<SegmentKey>)> = self
            .running
            .iter()
            .filter(|(_, sequence)| {
                !sequence.is_decoding() && !sequence.is_composing() && sequence.has_room()
            })
            .map(|(age, _)| (*age, None))
            .chain(
                self.builds
                    .iter()
                    .filter(|build| build.is_running())
                    .map(|build| (build.age, Some(build.key))),
            )
            .collect();
        prefills.sort_by_key(|(age, _)| *age);
        let mut building: Vec<(SegmentKey, usize)> = Vec::new();
        for (age, key) in prefills {
            if budget == 0 {
                break;
            }
            let rows = match key {
                None => self.running.get(&age).map_or(0, |sequence| sequence.share(budget, 0).ids.len()),
                // Whole, or in steps of its own: where a build is cut does not depend on the others.
                Some(key) => self.build(&key).map_or(0, |build| build.rows_left().min(self.config.rows)),
            };
            if rows > budget {
                continue;
            }
            budget -= rows;
            match key {
                None => shares.push((age, rows)),
                Some(key) => building.push((key, rows)),
            }
        }
        // Memory goes to the oldest first; only the younger lose it, and none of those is in the step yet.
        shares.sort_unstable();
        shares.retain(|(age, rows)| self.make_room_for(*age, *rows));
        shares.retain(|(age, _)| self.running.contains_key(age));
        self.compute(&shares, &building)
    }

    /// Packs and computes the rows of `shares` and `building`.
    fn compute(&mut self, shares: &[(Age, usize)], building: &[(SegmentKey, usize)]) -> bool {
        if shares.is_empty() && building.is_empty() {
            return false;
        }
        self.give();
        let mut step = Step::new();
        for (age, rows) in shares {
            let Some(sequence) = self.running.get_mut(age) else { continue };
            let share = sequence.share(*rows, step.rows());
            let counter = if sequence.is_decoding() {
                &mut self.counters.rows_decoded
            } else {
                &mut self.counters.rows_live
            };
            *counter += share.ids.len() as u64;
            sequence.take_part(&mut step, share);
        }
        let recording = step.plan.runs.len();
        for (key, rows) in building {
            if let Some(build) = self.builds.iter_mut().find(|build| build.key == *key) {
                build.take_part(&mut step, *rows, self.config.format.skip_below);
                self.counters.rows_built += *rows as u64;
            }
        }
        if step.rows() == 0 {
            return false;
        }
        self.counters.steps += 1;
        let computed = self.compute_layers(&mut step, building, recording);
        let mut runs = std::mem::take(&mut step.plan.runs).into_iter();
        let mut ends = Vec::with_capacity(shares.len());
        for (age, _) in shares {
            let sequence = self.running.get_mut(age);
            ends.extend(sequence.and_then(|sequence| sequence.take_back(runs.next())));
        }
        for (key, rows) in building {
            if let Some(build) = self.builds.iter_mut().find(|build| build.key == *key) {
                build.take_back(runs.next(), *rows);
            }
        }
        let finished = computed.and_then(|()| self.logits_of(&step, shares, &ends));
        match finished {
            Ok(logits) => {
                if logits.iter().any(Option::is_some) {
                    self.settle();
                }
                for ((age, _), logits) in shares.iter().zip(logits) {
                    self.computed(*age, logits);
                }
                self.finish_builds();
            }
            Err(error) => self.fail_step(shares, building, &error),
        }
        true
    }

    /// Every layer of a step; layers of builds that end in it are given out as they are done, and those of further devices
    /// taken over meanwhile.
    fn compute_layers(
        &mut self,
        step: &mut Step<D>,
        building: &[(SegmentKey, usize)],
        recording: usize,
    ) -> Result<(), EngineError> {
        if building.is_empty() {
            return step.finish(&self.device, &*self.model, &mut self.memory).map_err(EngineError::run_step);
        }
        for layer in 0..self.layers.len() {
            step.advance(&self.device, &*self.model, &mut self.memory).map_err(EngineError::run_step)?;
            for ((key, rows), run) in building.iter().zip(&step.plan.runs[recording..]) {
                self.finish_layer(key, *rows, layer, &run.context)?;
            }
            self.receive();
        }
        Ok(())
    }

    /// Logits for those sequences that have no row left; `ends` are their last rows in the step.
    fn logits_of(
        &self,
        step: &Step<D>,
        shares: &[(Age, usize)],
        ends: &[usize],
    ) -> Result<Vec<Option<Logits>>, EngineError> {
        let needs: Vec<Option<Need>> =
            shares.iter().map(|(age, _)| self.running.get(age).and_then(Sequence::need)).collect();
        let is_needed: Vec<bool> = needs.iter().map(Option::is_some).collect();
        let rows: Vec<(usize, Need)> =
            ends.iter().zip(needs).filter_map(|(end, need)| Some((*end, need?))).collect();
        let mut logits =
            step.logits(&self.device, &*self.model, &rows).map_err(EngineError::run_step)?.into_iter();
        Ok(is_needed.into_iter().map(|is_needed| is_needed.then(|| logits.next()).flatten()).collect())
    }

    /// Everybody in a step that failed ends with its error.
    fn fail_step(&mut self, shares: &[(Age, usize)], building: &[(SegmentKey, usize)], error: &EngineError) {
        for (age, _) in shares {
            if let Some(sequence) = self.running.get(age) {
                let request = sequence.prompt.request;
                self.fail_request(request, error);
            }
        }
        for (key, _) in building {
            self.fail_build(key, error);
        }
    }
}
