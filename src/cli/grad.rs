//! `intwain grad`.

use super::args::{Common, GradArgs};
use super::{Failure, data, output, run};
use crate::arrays::Npz;
use crate::model::to_tensor;
use crate::session::Session;

pub(crate) fn grad(a: &GradArgs, common: &Common) -> Result<(), Failure> {
    let mut model = run::open(&a.model, common)?;
    data::close(&a.inputs, &mut model)?;
    let inputs = data::read_inputs(&a.inputs, &model.graph(1)?, common)?;
    let npz = Npz::open(&a.cotangents)?;
    let mut cotangents = std::collections::BTreeMap::new();
    let names: Vec<String> = npz.names().filter(|n| n.starts_with("cot")).map(String::from).collect();
    for name in names {
        cotangents.insert(name.clone(), to_tensor(&npz.read(&name)?));
    }
    let mut session = Session::new(&model, run::session_options(&a.devices)?)?;
    let gradients = session.gradients(&inputs, &cotangents).map_err(|e| Failure::running(&a.inputs, e))?;
    output::times(common, &session.timings);
    data::write_outputs(&a.outputs, &gradients)
}
