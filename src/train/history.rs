//! What has become of training, as numbers: for checkpoints, which keep it bit for bit, and as a file for people.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use crate::arrays::{Array, ArrayError, write_npz};

use super::data::Position;
use super::fit::{EpochReport, History, Tally};
use super::metric::Measured;

/// A history as series by name, from which [`from_series`] makes it again.
pub fn series(history: &History) -> BTreeMap<String, Vec<f64>> {
    let mut series = BTreeMap::new();
    let mut put = |name: String, numbers: Vec<f64>| series.insert(name, numbers);
    put("losses".into(), history.losses.clone());
    put("best".into(), history.best.map_or(Vec::new(), |(best, since)| vec![best, since as f64]));
    let tally = &history.tally;
    put("tally".into(), vec![tally.rows, tally.loss]);
    put("tally/losses".into(), tally.losses.iter().flat_map(|(output, sum)| [*output as f64, *sum]).collect());
    put("tally/metrics".into(), tally.metrics.iter().map(|sums| sums.len() as f64).collect());
    for (m, metric) in tally.metrics.iter().enumerate() {
        for (k, sums) in metric.iter().enumerate() {
            put(format!("tally/metrics/{m}/{k}"), sums.clone());
        }
    }
    for (e, report) in history.epochs.iter().enumerate() {
        let (seconds, nanos) = (report.elapsed.as_secs() as f64, f64::from(report.elapsed.subsec_nanos()));
        put(format!("epochs/{e:08}"), vec![report.epoch as f64, seconds, nanos]);
        for (k, (name, value)) in report.values.iter().enumerate() {
            let kind = match value {
                Measured::One(_) => "one",
                Measured::Each(_) => "each",
            };
            put(format!("epochs/{e:08}/{k:04}/{kind}/{name}"), value.numbers().to_vec());
        }
    }
    series
}

/// The history of a checkpoint whose next step takes `next`; `None` where the series are not a history's.
pub fn from_series(series: &BTreeMap<String, Vec<f64>>, next: Position) -> Option<History> {
    let best = match series.get("best")?[..] {
        [] => None,
        [best, since] => Some((best, since as u64)),
        _ => return None,
    };
    let [rows, loss] = series.get("tally")?[..] else { return None };
    let pair = |pair: &[f64]| Some((*pair.first()? as usize, *pair.get(1)?));
    let losses = series.get("tally/losses")?.chunks(2).map(pair).collect::<Option<_>>()?;
    let mut metrics = Vec::new();
    for (m, kept) in series.get("tally/metrics")?.iter().enumerate() {
        let sums = (0..*kept as usize).map(|k| series.get(&format!("tally/metrics/{m}/{k}")).cloned());
        metrics.push(sums.collect::<Option<Vec<_>>>()?);
    }
    let mut epochs: Vec<EpochReport> = Vec::new();
    // Names are in order, so that an epoch stands before its values, and these as they were reported.
    for (name, numbers) in series.iter().filter_map(|(name, numbers)| Some((name.strip_prefix("epochs/")?, numbers))) {
        match name.splitn(4, '/').collect::<Vec<_>>()[..] {
            [_] => {
                let [epoch, seconds, nanos] = numbers[..] else { return None };
                let elapsed = Duration::from_secs(seconds as u64) + Duration::from_nanos(nanos as u64);
                epochs.push(EpochReport { epoch: epoch as u64, values: Vec::new(), elapsed });
            }
            [_, _, kind, name] => {
                let value = match (kind, &numbers[..]) {
                    ("one", [number]) => Measured::One(*number),
                    ("each", numbers) => Measured::Each(numbers.to_vec()),
                    _ => return None,
                };
                epochs.last_mut()?.values.push((name.to_string(), value));
            }
            _ => return None,
        }
    }
    let tally = Tally { rows, loss, losses, metrics };
    Some(History { losses: series.get("losses")?.clone(), epochs, next, tally, best })
}

/// Writes an npz: `loss` of every step, `epoch_loss` and each metric of every epoch, NaN where an epoch has none.
pub fn write(path: &Path, history: &History) -> Result<(), ArrayError> {
    let mut arrays = vec![("loss".to_string(), Array::from_f64([history.losses.len()], &history.losses))];
    let mut names: Vec<(&str, usize)> = Vec::new();
    for (name, value) in history.epochs.iter().flat_map(|report| &report.values) {
        match names.iter_mut().find(|(known, _)| known == name) {
            Some((_, width)) => *width = (*width).max(value.numbers().len()),
            None => names.push((name, value.numbers().len())),
        }
    }
    for (name, width) in names {
        let mut numbers = Vec::new();
        for report in &history.epochs {
            let found = report.values.iter().find(|(known, _)| known == name).map(|(_, value)| value.numbers());
            let row = found.unwrap_or_default();
            numbers.extend(row);
            numbers.extend(std::iter::repeat_n(f64::NAN, width - row.len()));
        }
        let epochs = history.epochs.len();
        let shape = if width == 1 { vec![epochs] } else { vec![epochs, width] };
        let name = if name == "loss" { "epoch_loss" } else { name };
        arrays.push((name.to_string(), Array::from_f64(shape, &numbers)));
    }
    write_npz(path, arrays.iter().map(|(name, array)| (name.as_str(), array)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arrays::Npz;

    fn history() -> History {
        let report = |epoch: u64, values: &[(&str, Measured)]| EpochReport {
            epoch,
            values: values.iter().map(|(name, value)| (name.to_string(), value.clone())).collect(),
            elapsed: Duration::new(3, 999_999_999),
        };
        let classes = |a, b| ("per_class/iou", Measured::Each(vec![a, b]));
        History {
            losses: vec![0.1, f64::MIN_POSITIVE / 2.0, 1e300],
            epochs: vec![
                report(0, &[("loss", Measured::One(0.3)), ("accuracy", Measured::One(0.5)), classes(0.25, 0.75)]),
                report(1, &[("loss", Measured::One(0.2)), ("val_loss", Measured::One(0.4)), classes(0.5, 0.125)]),
            ],
            next: Position { epoch: 2, batch: 7 },
            tally: Tally {
                rows: 224.0,
                loss: 0.1 + 0.2,
                losses: vec![(0, 1.5), (3, 1.0 / 3.0)],
                metrics: vec![vec![vec![1.0, 2.0], vec![]], vec![], vec![vec![4.0]]],
            },
            best: Some((0.1 + 0.7, 2)),
        }
    }

    #[test]
    fn a_history_comes_back_from_its_series() {
        for history in [history(), History { next: Position { epoch: 0, batch: 1 }, ..History::default() }] {
            assert_eq!(from_series(&series(&history), history.next), Some(history));
        }
        let mut series = series(&history());
        series.remove("tally/metrics/0/1");
        assert_eq!(from_series(&series, Position::default()), None);
        assert_eq!(from_series(&BTreeMap::new(), Position::default()), None);
    }

    #[test]
    fn the_file_has_steps_and_epochs() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("h.npz");
        write(&path, &history()).expect("a file");
        let npz = Npz::open(&path).expect("an npz");
        let read = |name: &str| {
            let array = npz.read(name).expect("an array of this name");
            (array.shape().to_vec(), array.to_f64())
        };
        assert_eq!(npz.names().collect::<Vec<_>>(), ["loss", "epoch_loss", "accuracy", "per_class/iou", "val_loss"]);
        assert_eq!(read("loss"), (vec![3], history().losses));
        assert_eq!(read("epoch_loss"), (vec![2], vec![0.3, 0.2]));
        assert_eq!(read("per_class/iou"), (vec![2, 2], vec![0.25, 0.75, 0.5, 0.125]));
        let (shape, numbers) = read("val_loss");
        assert_eq!((shape, numbers[0].is_nan(), numbers[1]), (vec![2], true, 0.4));
        write(&path, &History::default()).expect("before the first step");
        assert_eq!(Npz::open(&path).expect("an npz").info("loss").map(|(_, shape)| shape.to_vec()), Some(vec![0]));
    }
}
