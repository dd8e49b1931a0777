//! Numbers and tables for people.

use std::fmt;

/// A time: `1.23 ms`.
pub(super) fn seconds(s: f64) -> String {
    let (number, unit) = match s.abs() {
        a if a >= 1.0 => (s, "s"),
        a if a >= 1e-3 => (s * 1e3, "ms"),
        a if a >= 1e-6 || a == 0.0 => (s * 1e6, "µs"),
        _ => (s * 1e9, "ns"),
    };
    format!("{} {unit}", three_digits(number))
}

/// A number of bytes: `1.23 MB`.
pub(super) fn bytes(n: f64) -> String {
    scaled(n, &["B", "kB", "MB", "GB", "TB", "PB"])
}

/// A number of operations: `1.23 G`.
pub(super) fn count(n: f64) -> String {
    scaled(n, &["", "k", "M", "G", "T", "P"]).trim_end().to_string()
}

fn scaled(mut n: f64, units: &[&str]) -> String {
    let mut unit = 0;
    while n.abs() >= 999.5 && unit + 1 < units.len() {
        (n, unit) = (n / 1e3, unit + 1);
    }
    if unit == 0 { format!("{n:.0} {}", units[0]) } else { format!("{} {}", three_digits(n), units[unit]) }
}

fn three_digits(n: f64) -> String {
    match n.abs() {
        a if a >= 99.95 => format!("{n:.0}"),
        a if a >= 9.995 => format!("{n:.1}"),
        _ => format!("{n:.2}"),
    }
}

/// `-` for nothing, which keeps tables readable.
pub(super) fn or_dash(n: f64, show: fn(f64) -> String) -> String {
    if n == 0.0 { "-".to_string() } else { show(n) }
}

/// How a column is set.
#[derive(Clone, Copy, Debug)]
pub(super) enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// Rows of text, columns two spaces apart.
#[derive(Debug)]
pub(super) struct Table {
    align: Vec<Align>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with a head.
    pub(super) fn new(head: &[(&str, Align)]) -> Table {
        Table { align: head.iter().map(|h| h.1).collect(), rows: vec![head.iter().map(|h| h.0.to_string()).collect()] }
    }

    /// Adds a row.
    pub(super) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |c: usize| self.rows.iter().map(|r| r[c].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..self.align.len()).map(width).collect();
        for row in &self.rows {
            let mut line = String::new();
            for ((cell, &width), align) in row.iter().zip(&widths).zip(&self.align) {
                let pad = " ".repeat(width - cell.chars().count());
                match align {
                    Align::Left => line.extend([cell, pad.as_str(), "  "]),
                    Align::Right => line.extend([pad.as_str(), cell, "  "]),
                }
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_three_digits() {
        assert_eq!(seconds(0.00123456), "1.23 ms");
        assert_eq!(seconds(2.0), "2.00 s");
        assert_eq!(seconds(45.67e-6), "45.7 µs");
        assert_eq!(bytes(0.0), "0 B");
        assert_eq!(bytes(999.0), "999 B");
        assert_eq!(bytes(999_600.0), "1.00 MB");
        assert_eq!(bytes(123_456_789.0), "123 MB");
        assert_eq!(count(7_750_000_000.0), "7.75 G");
        assert_eq!(count(12.0), "12");
    }

    #[test]
    fn columns_line_up() {
        let mut t = Table::new(&[("name", Align::Left), ("n", Align::Right)]);
        t.row(vec!["µ".into(), "10".into()]);
        assert_eq!(t.to_string(), "name   n\nµ     10\n");
    }
}
