//! Medians and their spread.

use std::collections::BTreeMap;

use crate::contender::Values;

/// Microseconds of every round, by what was timed.
#[derive(Default)]
pub struct Samples(BTreeMap<String, Vec<f64>>);

/// Quartiles: half of the rounds lie between the outer two.
#[derive(Clone, Copy)]
pub struct Summary {
    pub rounds: usize,
    pub least: f64,
    pub low: f64,
    pub median: f64,
    pub high: f64,
}

impl Samples {
    pub fn add(&mut self, values: Values) {
        for (key, value) in values {
            self.0.entry(key).or_default().push(value);
        }
    }

    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    pub fn summary(&self, key: &str) -> Option<Summary> {
        let mut sorted = self.0.get(key)?.clone();
        sorted.sort_by(f64::total_cmp);
        Some(Summary {
            rounds: sorted.len(),
            least: *sorted.first()?,
            low: quantile(&sorted, 0.25)?,
            median: quantile(&sorted, 0.5)?,
            high: quantile(&sorted, 0.75)?,
        })
    }
}

/// Between two samples, their weighted mean.
fn quantile(sorted: &[f64], part: f64) -> Option<f64> {
    let place = part * (sorted.len().checked_sub(1)?) as f64;
    let below = sorted.get(place.floor() as usize)?;
    let above = sorted.get(place.ceil() as usize)?;
    Some(below + (above - below) * place.fract())
}
