//! Latencies from what this process counts, in the format of Prometheus.

use semel_core::telemetry::END_TO_END_LATENCY;

/// How many events took at most so long, of one pipeline, from the first to the last bucket.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Buckets(Vec<(f64, f64)>);

impl Buckets {
    /// The buckets of a pipeline.
    pub(crate) fn read(metrics: &str, pipeline: &str) -> Self {
        let begin = format!("{}_bucket{{", END_TO_END_LATENCY.name);
        let label = format!("pipeline={pipeline:?}");
        let mut buckets: Vec<(f64, f64)> = metrics
            .lines()
            .filter_map(|line| line.strip_prefix(&begin))
            .filter(|line| line.contains(&label))
            .filter_map(|line| {
                let (_, rest) = line.split_once("le=\"")?;
                let (bound, rest) = rest.split_once('"')?;
                let (_, count) = rest.rsplit_once(' ')?;
                let bound = if bound == "+Inf" { f64::INFINITY } else { bound.parse().ok()? };
                Some((bound, count.parse().ok()?))
            })
            .collect();
        buckets.sort_by(|one, other| one.0.total_cmp(&other.0));
        Self(buckets)
    }

    /// The latencies that half, 95 and 99 of 100 events had at most since `earlier`, in seconds.
    pub(crate) fn since(&self, earlier: &Self) -> Option<[f64; 3]> {
        let before = |place: usize| earlier.0.get(place).map_or(0.0, |(_, count)| *count);
        let added: Vec<(f64, f64)> = self
            .0
            .iter()
            .enumerate()
            .map(|(place, (bound, count))| (*bound, count - before(place)))
            .collect();
        let total = added.last().map(|(_, count)| *count).filter(|total| *total > 0.0)?;
        Some([0.5, 0.95, 0.99].map(|share| quantile(&added, share * total)))
    }
}

/// Where the event of this rank is, if those of a bucket are spread evenly.
fn quantile(buckets: &[(f64, f64)], rank: f64) -> f64 {
    let (mut low, mut below) = (0.0, 0.0);
    for (bound, count) in buckets {
        if *count >= rank {
            let part = if *count > below { (rank - below) / (count - below) } else { 1.0 };
            return if bound.is_finite() { low + (bound - low) * part } else { low };
        }
        (low, below) = (*bound, *count);
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    const EARLIER: &str = "\
semel_end_to_end_latency_seconds_bucket{pipeline=\"orders\",le=\"0.1\"} 10
semel_end_to_end_latency_seconds_bucket{pipeline=\"orders\",le=\"1\"} 10
semel_end_to_end_latency_seconds_bucket{pipeline=\"orders\",le=\"+Inf\"} 10
semel_end_to_end_latency_seconds_bucket{pipeline=\"other\",le=\"0.1\"} 500
";
    const LATER: &str = "\
semel_end_to_end_latency_seconds_bucket{pipeline=\"orders\",le=\"0.1\"} 100
semel_end_to_end_latency_seconds_bucket{pipeline=\"orders\",le=\"1\"} 110
semel_end_to_end_latency_seconds_bucket{pipeline=\"orders\",le=\"+Inf\"} 110
";

    #[test]
    fn latencies_are_those_of_the_time_between() {
        let (earlier, later) = (Buckets::read(EARLIER, "orders"), Buckets::read(LATER, "orders"));
        let [p50, p95, p99] = later.since(&earlier).unwrap();
        assert!((p50 - 0.1 * 50.0 / 90.0).abs() < 1e-9, "{p50}");
        assert!(p95 > 0.1 && p95 < p99 && p99 < 1.0, "{p95} {p99}");
        assert_eq!(later.since(&later), None);
        assert_eq!(Buckets::read("", "orders").since(&Buckets::default()), None);
    }
}
