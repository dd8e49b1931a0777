//! The catalogue that is compiled in, and machines from TOML files of the same form.

use super::Hardware;
use super::read::{self, Definitions};

const DEVICES: (&str, &str) = ("devices.toml", include_str!("devices.toml"));
const MACHINES: (&str, &str) = ("machines.toml", include_str!("machines.toml"));

/// Hardware that cannot be used, and what would be accepted.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum HardwareError {
    /// No machine has this name.
    #[error("no hardware is named `{name}`; {}", suggestion(.nearest))]
    Unknown {
        /// What was asked for.
        name: String,
        /// The names that are closest, best first.
        nearest: Vec<String>,
    },
    /// The file is not TOML.
    #[error("{file}: not valid TOML: {message}")]
    Syntax {
        /// The file.
        file: String,
        /// What the TOML reader says, with line and column.
        message: String,
    },
    /// A key is missing, unknown or has a value that cannot be used.
    #[error("{file}: {key}: {problem}")]
    Key {
        /// The file.
        file: String,
        /// The dotted path of the key.
        key: String,
        /// What is wrong and what would be accepted.
        problem: String,
    },
}

fn suggestion(nearest: &[String]) -> String {
    format!("the nearest are {}; `intwain hardware` lists them all, and a TOML file works too", nearest.join(", "))
}

/// Every machine that can be asked for by name.
#[derive(Debug, Clone)]
pub struct Catalogue {
    definitions: Definitions,
}

impl Catalogue {
    /// The catalogue that is compiled in.
    pub fn built_in() -> Catalogue {
        let mut definitions = Definitions::default();
        for (file, text) in [DEVICES, MACHINES] {
            definitions.add(file, text).expect("the compiled-in catalogue is read by a test");
        }
        Catalogue { definitions }
    }

    /// The names of all machines, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.definitions.machine_names()
    }

    /// The machine of this name.
    pub fn get(&self, name: &str) -> Result<Hardware, HardwareError> {
        self.definitions
            .machine(name)?
            .ok_or_else(|| HardwareError::Unknown { name: name.to_owned(), nearest: read::nearest(name, self.names()) })
    }

    /// The machine that a TOML file defines. It may name devices of the catalogue and define its own.
    pub fn read(&self, file: &str, text: &str) -> Result<Hardware, HardwareError> {
        let mut definitions = self.definitions.clone();
        let machines = definitions.add(file, text)?;
        match machines.as_slice() {
            [only] => Ok(definitions.machine(only)?.expect("`add` returns names that it defined")),
            [] => Err(HardwareError::Key {
                file: file.to_owned(),
                key: "machine".to_owned(),
                problem: "defines no machine; write a table `[machine.NAME]` with `devices` and `link`".to_owned(),
            }),
            several => Err(HardwareError::Key {
                file: file.to_owned(),
                key: "machine".to_owned(),
                problem: format!("defines {} machines ({}); one is expected", several.len(), several.join(", ")),
            }),
        }
    }
}
