//! Reads the TOML form of devices and machines. Every error names the file and the dotted key.

use super::catalogue::HardwareError;
use super::{Access, Arithmetic, Basis, DeviceKind, DeviceSpec, Figure, Hardware, Link, LinkKind, OpClass};
use std::collections::BTreeMap;
use toml::{Table, Value};

/// Devices and machines by name, with the file that defines each.
#[derive(Debug, Clone, Default)]
pub(super) struct Definitions {
    devices: BTreeMap<String, DeviceSpec>,
    machines: BTreeMap<String, Machine>,
}

#[derive(Debug, Clone)]
struct Machine {
    file: String,
    devices: Vec<String>,
    alone: Option<String>,
    link: Link,
}

impl Definitions {
    /// Adds what a text defines and returns the names of its machines.
    pub(super) fn add(&mut self, file: &str, text: &str) -> Result<Vec<String>, HardwareError> {
        let table: Table = text
            .parse()
            .map_err(|e: toml::de::Error| HardwareError::Syntax { file: file.to_owned(), message: e.to_string() })?;
        let mut root = Cursor { file, path: String::new(), table: &table, seen: Vec::new() };
        if let Some(devices) = root.optional_table("device")? {
            for (name, _) in devices.table {
                let device = read_device(name, devices.child(name)?)?;
                self.devices.insert(name.clone(), device);
            }
        }
        let mut names = Vec::new();
        if let Some(machines) = root.optional_table("machine")? {
            for (name, _) in machines.table {
                self.machines.insert(name.clone(), read_machine(machines.child(name)?)?);
                names.push(name.clone());
            }
        }
        root.finish()?;
        Ok(names)
    }

    pub(super) fn machine_names(&self) -> impl Iterator<Item = &str> {
        self.machines.keys().map(String::as_str)
    }

    /// The machine of this name with its devices, if it is defined.
    pub(super) fn machine(&self, name: &str) -> Result<Option<Hardware>, HardwareError> {
        let Some(machine) = self.machines.get(name) else { return Ok(None) };
        let device = |key: String, wanted: &str| {
            self.devices.get(wanted).cloned().ok_or_else(|| HardwareError::Key {
                file: machine.file.clone(),
                key,
                problem: format!(
                    "no device is named `{wanted}`; the nearest are {}",
                    nearest(wanted, self.devices.keys().map(String::as_str)).join(", ")
                ),
            })
        };
        let devices = machine
            .devices
            .iter()
            .enumerate()
            .map(|(i, d)| device(format!("machine.{name}.devices[{i}]"), d))
            .collect::<Result<Vec<_>, _>>()?;
        let alone = match &machine.alone {
            Some(d) => device(format!("machine.{name}.alone"), d)?,
            None => devices[0].clone(),
        };
        Ok(Some(Hardware { name: name.to_owned(), devices, alone, link: machine.link.clone() }))
    }
}

/// The three names closest to `name` by edit distance.
pub(super) fn nearest<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut scored: Vec<(usize, &str)> = names.map(|n| (distance(name, n), n)).collect();
    scored.sort();
    scored.into_iter().take(3).map(|(_, n)| n.to_owned()).collect()
}

fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, &cb) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(ca != cb);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

/// A table that knows its file and path, and which keys were asked for.
struct Cursor<'a> {
    file: &'a str,
    path: String,
    table: &'a Table,
    seen: Vec<&'static str>,
}

impl<'a> Cursor<'a> {
    fn key(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    fn error(&self, key: &str, problem: String) -> HardwareError {
        HardwareError::Key { file: self.file.to_owned(), key: self.key(key), problem }
    }

    fn child(&self, key: &str) -> Result<Cursor<'a>, HardwareError> {
        match self.table.get(key) {
            Some(Value::Table(table)) => Ok(Cursor { file: self.file, path: self.key(key), table, seen: Vec::new() }),
            Some(other) => Err(self.error(key, format!("expected a table, found {}", other.type_str()))),
            None => Err(self.error(key, "missing; expected a table".to_owned())),
        }
    }

    fn required_table(&mut self, key: &'static str) -> Result<Cursor<'a>, HardwareError> {
        self.seen.push(key);
        self.child(key)
    }

    fn optional_table(&mut self, key: &'static str) -> Result<Option<Cursor<'a>>, HardwareError> {
        self.seen.push(key);
        if self.table.contains_key(key) { self.child(key).map(Some) } else { Ok(None) }
    }

    fn value(&mut self, key: &'static str, expected: &str) -> Result<&'a Value, HardwareError> {
        self.seen.push(key);
        self.table.get(key).ok_or_else(|| self.error(key, format!("missing; expected {expected}")))
    }

    fn string(&mut self, key: &'static str) -> Result<&'a str, HardwareError> {
        let value = self.value(key, "a string")?;
        value.as_str().ok_or_else(|| self.error(key, format!("expected a string, found {}", value.type_str())))
    }

    fn choice<T: Copy>(&mut self, key: &'static str, choices: &[(&str, T)]) -> Result<T, HardwareError> {
        let text = self.string(key)?;
        choices.iter().find(|(name, _)| *name == text).map(|&(_, value)| value).ok_or_else(|| {
            let names: Vec<String> = choices.iter().map(|(name, _)| format!("\"{name}\"")).collect();
            self.error(key, format!("\"{text}\" is not one of {}", names.join(", ")))
        })
    }

    /// A positive number, plain or as `{ value, basis }`.
    fn figure(&mut self, key: &'static str) -> Result<Figure, HardwareError> {
        let value = self.value(key, "a positive number or { value = …, basis = … }")?;
        if matches!(value, Value::Table(_)) {
            let mut inner = self.child(key)?;
            let value = inner.number("value")?;
            let bases = [Basis::Measured, Basis::Interpolated, Basis::Assumed].map(|b| (b.name(), b));
            let basis = inner.choice("basis", &bases)?;
            inner.finish()?;
            return Ok(Figure { value, basis });
        }
        Ok(Figure { value: self.number(key)?, basis: Basis::Assumed })
    }

    fn number(&mut self, key: &'static str) -> Result<f64, HardwareError> {
        let value = self.value(key, "a positive number")?;
        let number = match value {
            Value::Float(x) => *x,
            Value::Integer(i) => *i as f64,
            Value::String(_) | Value::Boolean(_) | Value::Datetime(_) | Value::Array(_) | Value::Table(_) => {
                return Err(self.error(key, format!("expected a positive number, found {}", value.type_str())));
            }
        };
        if number.is_finite() && number > 0.0 {
            Ok(number)
        } else {
            Err(self.error(key, format!("expected a positive finite number, found {number}")))
        }
    }

    fn strings(&mut self, key: &'static str) -> Result<Vec<String>, HardwareError> {
        let value = self.value(key, "an array of device names")?;
        let array = value.as_array().map(Vec::as_slice);
        let strings: Option<Vec<String>> =
            array.and_then(|a| a.iter().map(|v| v.as_str().map(str::to_owned)).collect());
        strings.ok_or_else(|| self.error(key, "expected an array of device names".to_owned()))
    }

    /// Refuses keys that nobody asked for.
    fn finish(self) -> Result<(), HardwareError> {
        match self.table.keys().find(|key| !self.seen.contains(&key.as_str())) {
            Some(key) => Err(self.error(key, format!("unknown key; known here: {}", self.seen.join(", ")))),
            None => Ok(()),
        }
    }
}

fn read_device(name: &str, mut cursor: Cursor<'_>) -> Result<DeviceSpec, HardwareError> {
    let kind = cursor.choice("kind", &[("cpu", DeviceKind::Cpu), ("gpu", DeviceKind::Gpu)])?;
    let target = cursor.string("target")?.to_owned();
    let (memory, bandwidth, launch) = (cursor.figure("memory")?, cursor.figure("bandwidth")?, cursor.figure("launch")?);
    let mut rates_table = cursor.required_table("rates")?;
    let mut rates = [memory; Arithmetic::ALL.len()];
    for arithmetic in Arithmetic::ALL {
        rates[arithmetic as usize] = rates_table.figure(arithmetic.name())?;
    }
    rates_table.finish()?;
    let mut efficiency_table = cursor.required_table("efficiency")?;
    let mut efficiency = [memory; OpClass::ALL.len()];
    for class in OpClass::ALL {
        let figure = efficiency_table.figure(class.name())?;
        if figure.value > 1.0 {
            return Err(efficiency_table.error(class.name(), format!("{} is above 1", figure.value)));
        }
        efficiency[class as usize] = figure;
    }
    efficiency_table.finish()?;
    cursor.finish()?;
    Ok(DeviceSpec { name: name.to_owned(), kind, target, memory, bandwidth, launch, rates, efficiency })
}

fn read_machine(mut cursor: Cursor<'_>) -> Result<Machine, HardwareError> {
    let devices = cursor.strings("devices")?;
    if devices.len() != 2 {
        return Err(cursor.error("devices", format!("{} devices; two are expected", devices.len())));
    }
    let alone = if cursor.table.contains_key("alone") { Some(cursor.string("alone")?.to_owned()) } else { None };
    let link = read_link(cursor.required_table("link")?)?;
    let file = cursor.file.to_owned();
    cursor.seen.push("alone");
    cursor.finish()?;
    Ok(Machine { file, devices, alone, link })
}

fn read_link(mut cursor: Cursor<'_>) -> Result<Link, HardwareError> {
    let kinds = [LinkKind::NvLink, LinkKind::Pcie, LinkKind::SharedMemory].map(|k| (k.name(), k));
    let kind = cursor.choice("kind", &kinds)?;
    let access = cursor.choice("access", &[("peer", Access::Peer), ("host", Access::Host)])?;
    let (latency, bandwidth) = (cursor.figure("latency")?, cursor.figure("bandwidth")?);
    cursor.finish()?;
    Ok(Link { kind, access, latency, bandwidth })
}
