use super::catalogue::HardwareError;
use super::*;

#[test]
fn every_machine_is_complete_and_reads_back_equal() {
    let catalogue = Catalogue::built_in();
    let names: Vec<&str> = catalogue.names().collect();
    for wanted in ["2xa100-nvlink", "2xh100-pcie", "2xh200-nvlink", "2xl40s-pcie", "2xrtx5090-pcie", "a100-rtx4090"] {
        assert!(names.contains(&wanted), "{wanted}");
    }
    for name in names {
        let machine = catalogue.get(name).unwrap();
        let again = catalogue.read("copy.toml", &machine.to_string()).unwrap();
        assert_eq!(machine, again);
        assert_eq!(machine.hash(), again.hash());
        assert_eq!(machine.hash().len(), 64);
    }
}

#[test]
fn hash_sees_every_figure() {
    let machine = Catalogue::built_in().get("2xh100-nvlink").unwrap();
    let mut other = machine.clone();
    other.link.bandwidth.value *= 1.001;
    assert_ne!(machine.hash(), other.hash());
    let mut other = machine.clone();
    other.devices[1].launch.basis = Basis::Measured;
    other.devices[1].name = "measured".to_owned();
    assert_ne!(machine.hash(), other.hash());
}

#[test]
fn unlike_devices_are_not_even() {
    let catalogue = Catalogue::built_in();
    assert!(catalogue.get("2xa100-pcie").unwrap().is_even());
    assert!(!catalogue.get("a100-rtx4090").unwrap().is_even());
}

#[test]
fn unknown_names_list_the_nearest() {
    let error = Catalogue::built_in().get("2xa100-nvlnk").unwrap_err();
    let HardwareError::Unknown { nearest, .. } = &error else { panic!("{error}") };
    assert_eq!(nearest[0], "2xa100-nvlink");
}

#[test]
fn bad_files_name_file_and_key() {
    let catalogue = Catalogue::built_in();
    let good = catalogue.get("2xa100-pcie").unwrap().to_string();
    let message = |text: &str| catalogue.read("mine.toml", text).unwrap_err().to_string();
    let cases = [
        (good.replace("launch = 4e-6", "launch = \"fast\""), "mine.toml: device.a100-pcie.launch: expected a positive"),
        (good.replace("launch = 4e-6", ""), "mine.toml: device.a100-pcie.launch: missing"),
        (good.replace("launch", "lunch"), "mine.toml: device.a100-pcie.launch: missing"),
        (good.replace("kind = \"gpu\"", "kind = \"gpu\"\ncolour = 1"), "device.a100-pcie.colour: unknown key"),
        (good.replace("\"pcie\"", "\"isa\""), "machine.2xa100-pcie.link.kind: \"isa\" is not one of"),
        (
            good.replace("devices = [\"a100-pcie\"", "devices = [\"a100-pci\""),
            "devices[0]: no device is named `a100-pci`",
        ),
        ("[machine".to_owned(), "mine.toml: not valid TOML"),
        (String::new(), "defines no machine"),
    ];
    for (text, expected) in cases {
        let got = message(&text);
        assert!(got.contains(expected), "expected `{expected}` in `{got}`");
    }
}
