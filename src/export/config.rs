//! What a file says about a model beside its weights: the architecture, and what it is trained with.

use indexmap::IndexMap;
use intwain_ir::DType;

use crate::frontend::{Generation, Json};

/// What a model is trained with, as Keras 3 serialises it or by Keras's names. `Json::Null` is none.
#[derive(Clone, Debug, PartialEq)]
pub struct Compile {
    /// The optimizer.
    pub optimizer: Json,
    /// One loss, or one for each output.
    pub loss: Json,
    /// What the losses are multiplied with.
    pub loss_weights: Json,
    /// The metrics.
    pub metrics: Json,
    /// The metrics that samples are weighted in.
    pub weighted_metrics: Json,
}

fn object(entries: impl IntoIterator<Item = (&'static str, Json)>) -> Json {
    Json::Object(entries.into_iter().map(|(key, value)| (key.to_string(), value)).collect())
}

impl Compile {
    /// What a file says: `compile_config` of Keras 3, or `training_config` of whole-model HDF5 files. `None` where it names
    /// no optimizer.
    pub fn of(config: &Json) -> Option<Compile> {
        let get = |key: &str| config.get(key).cloned().unwrap_or(Json::Null);
        let optimizer = config.get("optimizer").or_else(|| config.get("optimizer_config"))?.clone();
        Some(Compile {
            optimizer,
            loss: get("loss"),
            loss_weights: get("loss_weights"),
            metrics: get("metrics"),
            weighted_metrics: get("weighted_metrics"),
        })
    }

    /// `compile_config`.
    pub(super) fn keras3(&self) -> Json {
        object([
            ("optimizer", self.optimizer.clone()),
            ("loss", self.loss.clone()),
            ("loss_weights", self.loss_weights.clone()),
            ("metrics", self.metrics.clone()),
            ("weighted_metrics", self.weighted_metrics.clone()),
            ("run_eagerly", Json::Bool(false)),
            ("steps_per_execution", Json::Int(1)),
            ("jit_compile", Json::Bool(false)),
        ])
    }

    /// `training_config`.
    pub(super) fn legacy(&self, generation: Generation) -> Json {
        object([
            ("loss", spelt_out(&self.loss)),
            ("loss_weights", self.loss_weights.clone()),
            ("metrics", self.metrics.clone()),
            ("weighted_metrics", self.weighted_metrics.clone()),
            ("optimizer_config", legacy_optimizer(&self.optimizer, generation)),
        ])
    }
}

/// Short names of losses spelt out: `load_model` of Keras 3 takes short ones in HDF5 files for metrics, and fails.
fn spelt_out(loss: &Json) -> Json {
    const SHORT: [(&str, &str); 12] = [
        ("mse", "mean_squared_error"),
        ("MSE", "mean_squared_error"),
        ("mae", "mean_absolute_error"),
        ("MAE", "mean_absolute_error"),
        ("mape", "mean_absolute_percentage_error"),
        ("MAPE", "mean_absolute_percentage_error"),
        ("msle", "mean_squared_logarithmic_error"),
        ("MSLE", "mean_squared_logarithmic_error"),
        ("bce", "binary_crossentropy"),
        ("BCE", "binary_crossentropy"),
        ("kld", "kl_divergence"),
        ("KLD", "kl_divergence"),
    ];
    match loss {
        Json::String(name) => {
            let long = SHORT.iter().find(|(short, _)| short == name).map_or(&**name, |(_, long)| long);
            Json::String(long.to_string())
        }
        Json::Array(items) => Json::Array(items.iter().map(spelt_out).collect()),
        // A serialised loss, or losses by the names of outputs.
        Json::Object(map) if !map.contains_key("class_name") => {
            Json::Object(map.iter().map(|(output, loss)| (output.clone(), spelt_out(loss))).collect())
        }
        Json::Object(_) | Json::Null | Json::Bool(_) | Json::Int(_) | Json::Float(_) => loss.clone(),
    }
}

/// A class and its configuration. The optimizers of Keras 2 know fewer keys, which are left out where they ask for nothing:
/// so Keras 2 and Keras 3 load the file.
fn legacy_optimizer(optimizer: &Json, generation: Generation) -> Json {
    if let Json::String(name) = optimizer {
        return object([("class_name", Json::String(name.clone())), ("config", object([]))]);
    }
    let class = optimizer.get("class_name").cloned().unwrap_or(Json::Null);
    let mut config = optimizer.get("config").cloned().unwrap_or_else(|| object([]));
    if let (Generation::One | Generation::Two, Json::Object(map)) = (generation, &mut config) {
        let averages = map.get("use_ema") == Some(&Json::Bool(true));
        map.retain(|key, value| *value != Json::Null && (averages || !matches!(&**key, "use_ema" | "ema_momentum")));
    }
    object([("class_name", class), ("config", config)])
}

/// The architecture for a `.keras` file; `None` where it is not in the language of Keras 3.
pub(super) fn archive(architecture: &Json, float: Option<DType>, compile: Option<&Compile>) -> Option<Json> {
    architecture.get("module")?;
    let Json::Object(mut map) = in_float(architecture, float) else { return None };
    // A version stands in metadata.json.
    map.shift_remove("keras_version");
    map.shift_remove("backend");
    map.insert("compile_config".to_string(), compile.map_or(Json::Null, Compile::keras3));
    Some(Json::Object(map))
}

/// The architecture for a whole-model HDF5 file.
pub(super) fn whole_h5(architecture: &Json, float: Option<DType>) -> Json {
    let mut model = in_float(architecture, float);
    if let Json::Object(map) = &mut model {
        map.retain(|key, _| matches!(&**key, "class_name" | "config"));
    }
    model
}

/// The version that wrote the architecture.
pub(super) fn version(architecture: &Json) -> &str {
    architecture.get("keras_version").and_then(Json::as_str).unwrap_or("3.0.0")
}

/// The architecture with the floating types of layers replaced, where the model was read so.
fn in_float(json: &Json, float: Option<DType>) -> Json {
    let Some(float) = float else { return json.clone() };
    match json {
        Json::Array(items) => Json::Array(items.iter().map(|item| in_float(item, Some(float))).collect()),
        Json::Object(map) => {
            let typed = typed(map);
            let value = |(key, value): (&String, &Json)| match (typed, &**key, value) {
                (true, "config", Json::Object(config)) => {
                    let mut config: IndexMap<String, Json> =
                        config.iter().map(|(key, value)| (key.clone(), in_float(value, Some(float)))).collect();
                    if let Some(dtype) = config.get_mut("dtype") {
                        *dtype = policy(dtype, float);
                    }
                    (key.clone(), Json::Object(config))
                }
                _ => (key.clone(), in_float(value, Some(float))),
            };
            Json::Object(map.iter().map(value).collect())
        }
        Json::Null | Json::Bool(_) | Json::Int(_) | Json::Float(_) | Json::String(_) => json.clone(),
    }
}

/// Whether an object is a layer, a model or a tensor, whose `dtype` is what it computes in.
fn typed(map: &IndexMap<String, Json>) -> bool {
    let class = map.get("class_name").and_then(Json::as_str);
    let module = map.get("module").and_then(Json::as_str);
    let layer =
        module.is_none_or(|m| m == "keras" || m.starts_with("keras.layers") || m.starts_with("keras.src.models"));
    class == Some("__keras_tensor__") || (class.is_some() && map.get("config").is_some() && layer)
}

/// A dtype or a policy with another floating type.
fn policy(dtype: &Json, float: DType) -> Json {
    let name = || Json::String(name(float).to_string());
    match dtype {
        Json::String(of) if of.contains("float") => name(),
        Json::Object(map) => {
            let mut map = map.clone();
            if let Some(Json::Object(config)) = map.get_mut("config")
                && let Some(own) = config.get_mut("name")
            {
                *own = policy(own, float);
            }
            Json::Object(map)
        }
        Json::Null | Json::Bool(_) | Json::Int(_) | Json::Float(_) | Json::String(_) | Json::Array(_) => dtype.clone(),
    }
}

fn name(float: DType) -> &'static str {
    match float {
        DType::F16 => "float16",
        DType::BF16 => "bfloat16",
        DType::F64 => "float64",
        DType::F32 | DType::Bool | DType::I8 | DType::I16 | DType::I32 | DType::I64 | DType::U8 | DType::U32 => {
            "float32"
        }
    }
}
