//! `intwain hardware`.

use super::args::{Common, HardwareArgs};
use super::{Failure, output, plan};
use crate::report::MachineReport;
use intwain_passes::hardware::Catalogue;

pub(crate) fn hardware(a: &HardwareArgs, common: &Common) -> Result<(), Failure> {
    if a.name.is_some() {
        let machine = plan::machine(a.name.as_deref())?;
        let report = MachineReport::new(&machine);
        return if common.json { output::json(&report) } else { output::print(&machine.to_string()) };
    }
    let catalogue = Catalogue::built_in();
    let machines: Result<Vec<MachineReport>, _> =
        catalogue.names().map(|n| catalogue.get(n).map(|h| MachineReport::new(&h))).collect();
    let machines = machines?;
    if common.json { output::json(&machines) } else { output::print(&MachineReport::table(&machines).to_string()) }
}
