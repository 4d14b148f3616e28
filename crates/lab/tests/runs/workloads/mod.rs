//! Workloads in a temporary directory: our own at tiny sizes, real tools at
//! their smallest.

mod ground;
mod own;
mod tools;

use butterfs_lab::workload;

#[test]
fn every_workload_has_a_name_of_its_own_and_usable_defaults() {
    let mut names = std::collections::BTreeSet::new();
    for one in workload::all() {
        assert!(names.insert(one.name()), "{} twice", one.name());
        let demand = one.demand(&workload::Parameters::new());
        demand.unwrap_or_else(|error| panic!("{}: {error}", one.name()));
        for (name, default, meaning) in one.parameters() {
            assert!(!meaning.is_empty(), "{} {name}", one.name());
            // A default is a value that may be given, too.
            let given = ground::parameters(&[(name, default)]);
            one.demand(&given)
                .unwrap_or_else(|error| panic!("{} {name}={default}: {error}", one.name()));
        }
    }
}

#[test]
fn a_wrong_parameter_gets_the_nearest_right_one() {
    for one in workload::all() {
        let (name, ..) = one.parameters()[0];
        let given = ground::parameters(&[(&format!("{name}x"), "1")]);
        let error = one.demand(&given).unwrap_err();
        assert!(error.contains("did you mean"), "{}: {error}", one.name());
    }
    let grid = workload::find("grid").unwrap();
    for (name, value) in [
        ("size", "many"),
        ("size", "0"),
        ("compressible", "101"),
        ("direct", "maybe"),
        ("phases", "read"),
        ("phases", "write,wirte"),
    ] {
        let error = grid
            .demand(&ground::parameters(&[(name, value)]))
            .unwrap_err();
        assert!(error.contains("grid") && error.contains(name), "{error}");
    }
}
