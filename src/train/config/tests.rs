use super::*;
use crate::train::metric::{Listed, reported};

fn json(text: &str) -> Json {
    Json::parse(text).unwrap()
}

fn strings(json: &Json) -> Vec<String> {
    json.as_array().unwrap().iter().map(|s| s.as_str().unwrap().to_string()).collect()
}

fn outputs(arrangement: &str, layers: &[&str]) -> Outputs {
    let layers: Vec<String> = layers.iter().map(|s| s.to_string()).collect();
    let names = unique(&layers);
    match arrangement {
        "one" => Outputs { layers, names, nest: Nest::One },
        "named" => {
            let names = vec!["p".to_string(), "q".to_string()];
            let nest = Nest::Named(names.iter().map(|name| (name.clone(), Nest::One)).collect());
            Outputs { layers, names, nest }
        }
        _ => {
            let nest = Nest::List(vec![Nest::One; layers.len()]);
            Outputs { layers, names, nest }
        }
    }
}

/// What a metric is called where it says nothing else.
fn own(at: &At<'_>) -> String {
    let name = match at.get("config") {
        None => at.clone(),
        Some(config) => config.get("name").unwrap_or(config),
    };
    name.str().unwrap().to_string()
}

fn names(config: &TrainConfig<'_>) -> Vec<String> {
    let several = config.outputs.len() > 1;
    let all = |of: fn(&OutputConfig<'_>) -> Vec<String>| -> Vec<(String, String)> {
        config.outputs.iter().flat_map(|o| of(o).into_iter().map(|name| (o.name.clone(), name))).collect()
    };
    let lists = [all(|o| o.metrics.iter().map(own).collect()), all(|o| o.weighted_metrics.iter().map(own).collect())];
    let [plain, weighted] = lists.each_ref().map(|list| -> Vec<Listed<'_>> {
        let before = |output, name| if several { config.naming.before(output, name) } else { None };
        list.iter().map(|(output, name)| Listed { output: before(output, name), name }).collect()
    });
    reported(&plain, &weighted)
}

/// `tests/goldens/training_configs.json`, made by `tools/make_training_config_goldens.py`.
#[test]
fn files_say_what_keras_makes_of_them() {
    let text = include_str!("../../../tests/goldens/training_configs.json");
    for case in json(text).as_array().unwrap() {
        let get = |key: &str| case.get(key).unwrap();
        let what = format!("{case}");
        let layers = strings(get("layers"));
        let layers: Vec<&str> = layers.iter().map(String::as_str).collect();
        let outputs = outputs(get("arrangement").as_str().unwrap(), &layers);
        let generation = if *get("keras") == Json::Int(3) { Generation::Three } else { Generation::Two };
        let said = Said::default();
        let config = TrainConfig::read(Some(get("config")), generation, &said, &outputs).unwrap();
        assert!(config.optimizer.is_some() && config.scales_loss, "{what}");
        let named = outputs.names.iter().zip(&config.outputs).filter(|(_, output)| output.loss.is_some());
        let losses: Vec<(String, f64)> = named
            .map(|(name, output)| {
                (if generation == Generation::Three { output.name.clone() } else { name.clone() }, output.weight)
            })
            .collect();
        let wanted = get("losses").as_array().unwrap().iter().map(|pair| {
            let [name, weight] = pair.as_array().unwrap() else { panic!("{what}") };
            let weight = if *weight == Json::Null { 1.0 } else { At::root(weight).f64().unwrap() };
            (name.as_str().unwrap().to_string(), weight)
        });
        assert_eq!(losses, wanted.collect::<Vec<_>>(), "{what}");
        let (mut got, mut wanted) = (names(&config), strings(get("metrics")));
        if generation == Generation::Two {
            // Keras 2 lists the weighted ones of an output behind the others of that output.
            got.sort();
            wanted.sort();
        }
        assert_eq!(got, wanted, "{what}");
    }
}

/// Losses and weights by output, then the problems.
fn read(file: &str, generation: Generation, said: &Said, outputs: &Outputs) -> Result<Vec<String>, Vec<String>> {
    let file = json(file);
    let config = TrainConfig::read(Some(&file), generation, said, outputs)
        .map_err(|problems| problems.iter().map(ToString::to_string).collect::<Vec<_>>())?;
    let of = |output: &OutputConfig<'_>| {
        let metrics: Vec<String> = output.metrics.iter().chain(&output.weighted_metrics).map(own).collect();
        let loss = output.loss.as_ref().map_or("-".to_string(), own);
        format!("{loss} {} {}", output.weight, metrics.join(","))
    };
    Ok(config.outputs.iter().map(of).collect())
}

#[test]
fn arguments_come_in_place_of_what_the_file_says() {
    let file = r#"{"optimizer": "adam", "loss": {"a": "mse", "b": "mae"}, "loss_weights": {"a": 3.0, "b": 4.0}, "metrics": null}"#;
    let two = outputs("list", &["a", "b"]);
    let argument = |text: &str| Some(Argument::parse(text).unwrap());
    let said = |loss, weights, metrics| Said { loss, loss_weights: weights, metrics, ..Said::default() };
    let read = |said: Said| read(file, Generation::Three, &said, &two);
    assert_eq!(read(Said::default()).unwrap(), ["mse 3 ", "mae 4 "]);
    // Metrics stand beside the file's losses; losses take the file's weights away.
    assert_eq!(read(said(None, None, argument("mae, acc"))).unwrap(), ["mse 3 mae,acc", "mae 4 mae,acc"]);
    assert_eq!(read(said(argument("huber"), None, None)).unwrap(), ["huber 1 ", "huber 1 "]);
    assert_eq!(read(said(argument(r#"["huber", null]"#), argument("2"), None)).unwrap(), ["huber 2 ", "- 2 "]);
    assert_eq!(
        read(said(argument("mse"), argument("0.5,2"), argument(r#"{"b": "mse"}"#))).unwrap(),
        ["mse 0.5 ", "mse 2 mse"]
    );
    let object = r#"{"class_name": "Huber", "config": {"name": "mine"}}"#;
    assert_eq!(read(said(argument(object), None, None)).unwrap(), ["mine 1 ", "mine 1 "]);
}

#[test]
fn what_fits_no_output_is_said_with_its_place() {
    let two = outputs("list", &["a", "b"]);
    let problems = |file: &str| read(file, Generation::Three, &Said::default(), &two).unwrap_err().join("\n");
    let loss = |loss: &str| problems(&format!(r#"{{"optimizer": "sgd", "loss": {loss}}}"#));
    let at = "what the model file was compiled with: $.loss";
    assert_eq!(loss(r#"{"a": "mse"}"#), format!("{at}: has no `b`"));
    assert_eq!(loss(r#"{"a": "mse", "b": "mse", "c": "mse"}"#), format!("{at}.c: is \"c\"; accepted: a, b"));
    assert_eq!(loss(r#"["mse", "mse", "mse"]"#), format!("{at}: 3 entries for 2 outputs"));
    assert_eq!(loss(r#"[["mse", "mae"], "mse"]"#), format!("{at}[0]: 2 of them where an output has one loss"));
    let weights =
        |weights: &str| problems(&format!(r#"{{"loss": ["mse", "mae"], "loss_weights": {weights}, "mode": 1}}"#));
    let weights = |text: &str| weights(text).replace("what the model file was compiled with: ", "");
    assert_eq!(
        weights("[1]"),
        "$.mode: the key `mode` is not known here\n$.loss_weights: 1 weights for the losses of 2 outputs"
    );
    assert!(weights("2.0").ends_with("$.loss_weights: one weight for the losses of 2 outputs"));
    assert!(weights(r#"[1, "x"]"#).ends_with("$.loss_weights[1]: is \"x\"; expected a finite number"));
    let metrics = |metrics: &str| problems(&format!(r#"{{"loss": "mse", "metrics": {metrics}}}"#));
    assert!(metrics(r#"["mae"]"#).ends_with("$.metrics: 1 entries of metrics for 2 outputs"));
    assert!(metrics(r#"{"aa": "mae"}"#).contains("$.metrics.aa: is \"aa\"; accepted: a, b"));
    let one = outputs("one", &["a"]);
    let several = read(r#"{"loss": ["mse", "mae"]}"#, Generation::Three, &Said::default(), &one).unwrap_err();
    assert_eq!(several, [format!("{at}: 2 of them where an output has one loss")]);
}

#[test]
fn keras_2_takes_dictionaries_that_do_not_name_all() {
    let two = outputs("list", &["a", "b"]);
    let read = |file: &str| read(file, Generation::Two, &Said::default(), &two).unwrap();
    assert_eq!(
        read(r#"{"loss": {"b": "mse"}, "loss_weights": {"b": 2}, "metrics": ["mae", "acc"]}"#),
        ["- 1 mae,acc", "mse 2 mae,acc"]
    );
    // As Keras 1 writes it.
    let file = r#"{"optimizer_config": {"class_name": "Adam", "config": {}}, "loss": "mse", "metrics": ["acc"], "sample_weight_mode": null, "loss_weights": [1.0, 0.2]}"#;
    assert_eq!(read(file), ["mse 1 acc", "mse 0.2 acc"]);
}

#[test]
fn deeper_arrangements_are_followed() {
    let nest = Nest::List(vec![Nest::One, Nest::Named(vec![("x".into(), Nest::One), ("y".into(), Nest::One)])]);
    let layers: Vec<String> = ["a", "b", "c"].map(String::from).to_vec();
    let three = Outputs { names: layers.clone(), layers, nest };
    let read = |file: &str| read(file, Generation::Three, &Said::default(), &three);
    assert_eq!(read(r#"{"loss": ["mse", {"y": "mae"}]}"#).unwrap(), ["mse 1 ", "- 1 ", "mae 1 "]);
    assert_eq!(read(r#"{"loss": ["mse", "mae", "huber"]}"#).unwrap(), ["mse 1 ", "mae 1 ", "huber 1 "]);
    let metrics = r#"{"loss": "mse", "metrics": [["mae"], {"x": ["acc", "mse"], "y": null}]}"#;
    assert_eq!(read(metrics).unwrap(), ["mse 1 mae", "mse 1 acc,mse", "mse 1 "]);
    assert!(
        read(r#"{"loss": ["mse", ["mae"]]}"#).unwrap_err()[0]
            .ends_with("expected an object with the keys of the model's outputs")
    );
}
