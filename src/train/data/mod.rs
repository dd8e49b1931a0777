//! Training data: inputs, labels and weights of samples, of which a batch is read at a time.
//!
//! Arrays that are not compressed are mapped, so that data may be larger than memory. [`Epoch`] says which rows the
//! batches of an epoch take; [`Data::gather`] reads those. What stands in the files is converted to what the model takes:
//! floats are rounded, any other value must stay what it is.

mod convert;
mod error;
mod files;
mod order;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use intwain_ir::{DType, Shape, Tensor, Type};

use crate::arrays::Rows;
pub use error::DataError;
use files::{Arrays, Found};
pub use order::{Epoch, Position, Shuffle};

/// An input or an output of the model.
#[derive(Clone, Debug)]
pub struct Port {
    /// Its name: of the input layer, or of the output.
    pub name: String,
    /// Its place among all inputs or outputs, as Keras flattens them: `in2`, `y2`.
    pub number: usize,
    /// The type of one row. Of an output, it says in which float type its labels and weights are computed with.
    pub row: Type,
}

impl Port {
    /// The floating type of labels and weights.
    fn float(&self) -> DType {
        match self.row.dtype {
            DType::F64 => DType::F64,
            DType::Bool | DType::I8 | DType::I16 | DType::I32 | DType::I64 | DType::U8 | DType::U32 => DType::F32,
            DType::F16 | DType::BF16 | DType::F32 => DType::F32,
        }
    }
}

/// An array with the type that its rows get.
#[derive(Debug)]
struct Column {
    name: String,
    file: PathBuf,
    rows: Rows,
    row: Type,
}

#[derive(Debug)]
struct Columns {
    inputs: Vec<Column>,
    labels: Vec<Column>,
    weights: Vec<Option<Column>>,
    /// The floating type of each output's weights.
    floats: Vec<DType>,
    unused: Vec<String>,
    skipped: Vec<(String, String)>,
}

/// Rows of samples. Cloning shares them.
#[derive(Clone, Debug)]
pub struct Data {
    columns: Arc<Columns>,
    range: Range<usize>,
    class_weights: Option<Arc<BTreeMap<i64, f64>>>,
}

/// Some rows of all arrays: inputs and labels in the order of the ports.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// One tensor for each input.
    pub inputs: Vec<Tensor>,
    /// One tensor for each output.
    pub labels: Vec<Tensor>,
    /// The weights of the samples, for each output.
    pub weights: Vec<Option<Tensor>>,
}

impl Data {
    /// Opens `.npz` files, `.npy` files (named as the file is) and directories of them. `outputs` are those that have a loss.
    pub fn open(paths: &[PathBuf], inputs: &[Port], outputs: &[Port]) -> Result<Data, DataError> {
        let Arrays { mut arrays, skipped } = Arrays::open(paths)?;
        let have: Vec<String> = arrays.keys().cloned().collect();
        let chosen = files::choose(&have, inputs, outputs)?;
        let rows = row_count(&chosen, &arrays)?;
        let labels = chosen.labels.iter().zip(outputs).map(|(name, port)| label(name, &arrays[name], port)).collect();
        let weight = |(name, port): (&Option<String>, &Port)| {
            let name = name.as_ref()?;
            Some(column(name, &arrays[name], port.float()))
        };
        let weights = chosen.weights.iter().zip(outputs).map(weight).collect();
        let inputs = chosen
            .inputs
            .iter()
            .zip(inputs)
            .map(|(name, port)| input(name, &arrays[name], port))
            .collect::<Result<_, _>>()?;
        let taken = chosen.inputs.iter().chain(&chosen.labels).chain(chosen.weights.iter().flatten());
        for name in taken {
            arrays.shift_remove(name);
        }
        let floats = outputs.iter().map(Port::float).collect();
        let columns = Columns { inputs, labels, weights, floats, unused: arrays.into_keys().collect(), skipped };
        Ok(Data { columns: Arc::new(columns), range: 0..rows, class_weights: None })
    }

    /// Weighs each sample by its class: that of its label, or the largest of them. Classes that are not named weigh 1.
    pub fn weigh_classes(self, weights: BTreeMap<i64, f64>) -> Result<Data, DataError> {
        let refused = |why: &str| Err(DataError::ClassWeights { why: why.to_string() });
        if self.columns.labels.len() != 1 {
            return refused(&format!("are for models with one output; this one has {}", self.columns.labels.len()));
        }
        if self.columns.labels[0].row.shape.len() > 1 {
            return refused("are for labels of one class a row, as a number or as one score for each class");
        }
        if let Some(own) = &self.columns.weights[0] {
            return refused(&format!(
                "and weights of samples (`{}`) exclude each other; multiply them into one",
                own.name
            ));
        }
        Ok(Data { class_weights: Some(Arc::new(weights)), ..self })
    }

    /// How many rows there are.
    pub fn rows(&self) -> usize {
        self.range.len()
    }

    /// The types of one row of the labels, for each output.
    pub fn label_rows(&self) -> Vec<Type> {
        self.columns.labels.iter().map(|column| column.row.clone()).collect()
    }

    /// The types of one row of the weights, for each output that has them.
    pub fn weight_rows(&self) -> Vec<Option<Type>> {
        let own = self.columns.weights.iter().map(|column| column.as_ref().map(|column| column.row.clone()));
        match self.class_weights {
            Some(_) => self.columns.floats.iter().map(|dtype| Some(Type::new(*dtype, []))).collect(),
            None => own.collect(),
        }
    }

    /// Arrays that nothing takes.
    pub fn unused(&self) -> &[String] {
        &self.columns.unused
    }

    /// What is no numeric array and was not read: name and what it is.
    pub fn skipped(&self) -> &[(String, String)] {
        &self.columns.skipped
    }

    /// The first rows to train on, and the last `fraction` of them to validate with: Keras's division, at
    /// ⌊n · (1 − fraction)⌋.
    pub fn split(&self, fraction: f64) -> Result<(Data, Data), DataError> {
        let rows = self.rows();
        // Also false of NaN.
        if !(fraction > 0.0 && fraction < 1.0) {
            return Err(DataError::Split { rows, fraction });
        }
        let at = (rows as f64 * (1.0 - fraction)).floor() as usize;
        if at == 0 || at == rows {
            return Err(DataError::Split { rows, fraction });
        }
        let part = |range: Range<usize>| Data { range, ..self.clone() };
        Ok((part(self.range.start..self.range.start + at), part(self.range.start + at..self.range.end)))
    }

    /// Reads some rows.
    ///
    /// # Panics
    /// Where there is no such row.
    pub fn gather(&self, rows: &[usize]) -> Result<Batch, DataError> {
        assert!(rows.iter().all(|&r| r < self.rows()), "rows of these data");
        let rows: Vec<usize> = rows.iter().map(|r| self.range.start + r).collect();
        let inputs = self.columns.inputs.iter().map(|column| column.gather(&rows)).collect::<Result<_, _>>()?;
        let labels: Vec<Tensor> =
            self.columns.labels.iter().map(|column| column.gather(&rows)).collect::<Result<_, _>>()?;
        let weights = match &self.class_weights {
            Some(classes) => {
                let weight = |(label, dtype): (&Tensor, &DType)| Some(class_weights(label, *dtype, classes));
                labels.iter().zip(&self.columns.floats).map(weight).collect()
            }
            None => {
                let weight = |column: &Option<Column>| column.as_ref().map(|column| column.gather(&rows)).transpose();
                self.columns.weights.iter().map(weight).collect::<Result<_, _>>()?
            }
        };
        Ok(Batch { inputs, labels, weights })
    }
}

impl Column {
    fn gather(&self, rows: &[usize]) -> Result<Tensor, DataError> {
        let bytes = self.rows.gather(rows.iter().copied()).map_err(|kind| kind.in_member(&self.file, &self.name))?;
        let bytes = convert::convert(bytes, self.rows.dtype(), self.row.dtype).map_err(|inexact| DataError::Value {
            name: self.name.clone(),
            row: rows[inexact.index / self.row.shape.elements()],
            value: inexact.value,
            dtype: self.row.dtype,
        })?;
        let mut shape = vec![rows.len()];
        shape.extend(self.row.shape.iter());
        let ty = Type::new(self.row.dtype, Shape::from(&shape[..]));
        Ok(Tensor::from_bytes(ty, bytes).expect("a row has as many elements as its type"))
    }
}

/// The number of rows that all arrays have.
fn row_count(chosen: &files::Chosen, arrays: &indexmap::IndexMap<String, Found>) -> Result<usize, DataError> {
    let mut first: Option<(&String, usize)> = None;
    for name in chosen.inputs.iter().chain(&chosen.labels).chain(chosen.weights.iter().flatten()) {
        let Some(&rows) = arrays[name].rows.shape().first() else {
            return Err(DataError::Scalar { name: name.clone() });
        };
        match first {
            None => first = Some((name, rows)),
            Some((_, known)) if known == rows => {}
            Some((other, other_rows)) => {
                return Err(DataError::RowCount { name: name.clone(), rows, other: other.clone(), other_rows });
            }
        }
    }
    match first {
        Some((_, rows)) if rows > 0 => Ok(rows),
        first => Err(DataError::NoRows { name: first.map(|(name, _)| name.clone()).unwrap_or_default() }),
    }
}

fn column(name: &str, found: &Found, dtype: DType) -> Column {
    let row = Type::new(dtype, Shape::from(&found.rows.shape()[1..]));
    Column { name: name.to_string(), file: found.file.clone(), rows: found.rows.clone(), row }
}

/// Labels keep their integers and get the float type that the loss is computed in.
fn label(name: &str, found: &Found, port: &Port) -> Column {
    let dtype = found.rows.dtype();
    column(name, found, if dtype.is_float() { port.float() } else { dtype })
}

/// As Keras does, a last dimension of 1 may be left out or be there once too often.
fn input(name: &str, found: &Found, port: &Port) -> Result<Column, DataError> {
    let own = Shape::from(&found.rows.shape()[1..]);
    let wanted = &port.row.shape;
    let extended =
        |short: &[usize], long: &[usize]| long.split_last().is_some_and(|(last, rest)| *last == 1 && rest == short);
    if own != *wanted && !extended(&own, wanted) && !extended(wanted, &own) {
        let (name, input) = (name.to_string(), port.name.clone());
        return Err(DataError::RowShape { name, found: Box::new(own), input, expected: Box::new(wanted.clone()) });
    }
    Ok(Column { row: port.row.clone(), ..column(name, found, port.row.dtype) })
}

/// The weight of each row's class, which is its label, to the nearest integer, or the place of its first maximum.
fn class_weights(labels: &Tensor, dtype: DType, weights: &BTreeMap<i64, f64>) -> Tensor {
    let rows = labels.ty.shape[0];
    let width = labels.elements() / rows.max(1);
    let values = labels.to_f64();
    let class = |row: &[f64]| match row {
        // Halves go to the even neighbour, as NumPy rounds.
        [label] => label.round_ties_even() as i64,
        scores => scores.iter().enumerate().fold(0, |best, (i, x)| if *x > scores[best] { i } else { best }) as i64,
    };
    let of_rows: Vec<f64> =
        values.chunks(width.max(1)).map(|row| weights.get(&class(row)).copied().unwrap_or(1.0)).collect();
    Tensor::from_f64(dtype, [rows], &of_rows)
}
