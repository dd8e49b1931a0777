//! A placement for people: at most as many lines as there are layers, and 20.

use super::super::plan::table;
use super::super::text::{Align, Table, bytes, count, or_dash, seconds};
use super::{DeviceReport, PlacementReport, Traffic};
use std::fmt;

impl fmt::Display for PlacementReport {
    /// At most as many lines as there are layers, and 20.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let batch = self.batch.map_or("no row axis".to_string(), |b| format!("batch {b}"));
        let pieces = if self.micro_batches > 1 { format!(" × {}", self.micro_batches) } else { String::new() };
        let (split, time) = (self.strategy, seconds(self.seconds));
        writeln!(f, "{} on {}, {batch}: {split}{pieces}, {time} per step", self.model, self.hardware)?;
        writeln!(f)?;
        write!(f, "{}", self.layer_table())?;
        writeln!(f)?;
        for d in &self.devices {
            writeln!(f, "{}", d.line())?;
        }
        let Traffic { count, bytes: total } =
            Traffic { count: self.totals.communications, bytes: self.totals.communication_bytes };
        let percent = |x: f64| format!("{:.1} %", x * 100.0);
        let plural = if count == 1 { "" } else { "s" };
        write!(f, "{count} transfer{plural}, {} per step", bytes(total as f64))?;
        if self.devices.len() > 1 {
            let (work, weights) = (percent(self.totals.split_flops), percent(self.totals.split_weight_bytes));
            write!(f, "; divided: {work} of the work, {weights} of the weights")?;
        }
        writeln!(f)?;
        writeln!(f)?;
        let text = table(&self.candidates).to_string();
        f.write_str(text.trim_end())?;
        match &self.training {
            Some(training) => write!(f, "\n\n{training}\n\n{}", training.state_table().trim_end()),
            None => Ok(()),
        }
    }
}

impl PlacementReport {
    fn layer_table(&self) -> Table {
        let mut table = Table::new(&[
            ("layer", Align::Left),
            ("on", Align::Left),
            ("layout", Align::Left),
            ("result", Align::Left),
            ("flops", Align::Right),
            ("weights", Align::Right),
            ("activations", Align::Right),
            ("in", Align::Right),
            ("out", Align::Right),
        ]);
        for l in &self.layers {
            let on: Vec<String> = l.devices.iter().map(usize::to_string).collect();
            table.row(vec![
                l.name.clone(),
                if on.is_empty() { "-".to_string() } else { on.join("+") },
                l.layout.clone().unwrap_or_else(|| "-".to_string()),
                l.result.clone().unwrap_or_else(|| "-".to_string()),
                or_dash(l.flops as f64, count),
                or_dash(l.parameter_bytes as f64, bytes),
                or_dash(l.activation_bytes as f64, bytes),
                or_dash(l.communication_in.bytes as f64, bytes),
                or_dash(l.communication_out.bytes as f64, bytes),
            ]);
        }
        table.row(vec![
            "total".to_string(),
            String::new(),
            String::new(),
            String::new(),
            or_dash(self.totals.flops as f64, count),
            or_dash(self.totals.weight_bytes as f64, bytes),
            String::new(),
            or_dash(self.totals.communication_bytes as f64, bytes),
            String::new(),
        ]);
        table
    }
}

impl DeviceReport {
    fn line(&self) -> String {
        let rows = self.rows.map_or(String::new(), |r| format!("{r} rows, "));
        format!(
            "device {} ({}): {rows}{:.1} % of the work, {} weights ({:.1} %), peak {} ({} kept, {} reused), {} commands, {} kernels",
            self.device,
            self.name,
            self.flops_share * 100.0,
            bytes(self.weight_bytes as f64),
            self.weight_share * 100.0,
            bytes(self.peak_bytes as f64),
            bytes(self.persistent_bytes as f64),
            bytes(self.arena_bytes as f64),
            self.commands,
            self.kernels.len()
        )
    }
}
