//! Where and how a run is made: the facts that somebody needs to get the same
//! figures.

use super::device::Device;
use crate::catalogue::Catalogue;
use crate::declaration::show_size;
use crate::filesystem::FileSystems;
use crate::machine::{Machine, read, version};
use crate::model::Manifest;
use crate::plan::{Devices, Plan};
use crate::wakeup::WakeUp;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

type Facts = BTreeMap<String, BTreeMap<String, String>>;

fn put(facts: &mut Facts, topic: &str, name: &str, value: impl Into<String>) {
    let value = value.into();
    if !value.is_empty() {
        facts
            .entry(topic.to_owned())
            .or_default()
            .insert(name.to_owned(), value);
    }
}

/// What is known before anything is made.
pub(super) fn manifest(
    plan: &Plan,
    machine: &Machine,
    file_systems: &FileSystems,
    workloads: &Catalogue,
) -> Manifest {
    let mut facts = Facts::new();
    let info = read("/proc/cpuinfo");
    let model = info.lines().find(|line| line.starts_with("model name"));
    let model = model.and_then(|line| line.split_once(':'));
    put(
        &mut facts,
        "cpu",
        "model",
        model.map_or("", |(_, name)| name.trim()),
    );
    put(&mut facts, "cpu", "processors", machine.cores.to_string());
    let governor = read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
    put(&mut facts, "cpu", "governor", governor);
    let wake_up = WakeUp::measure().to_string();
    put(&mut facts, "cpu", "waking a processor", wake_up);
    put(&mut facts, "memory", "total", show_size(machine.memory));
    put(
        &mut facts,
        "memory",
        "free at the start",
        show_size(machine.memory_available),
    );
    let capped = match (plan.scale.memory, &machine.cap) {
        (None, _) => "no".to_owned(),
        (Some(bytes), Ok(controller)) => format!("{}, by {controller}", show_size(bytes)),
        (Some(bytes), Err(why)) => format!("not capped at {}: {why}", show_size(bytes)),
    };
    put(&mut facts, "memory", "capped", capped);
    put(&mut facts, "kernel", "release", &machine.kernel);
    put(
        &mut facts,
        "kernel",
        "version",
        read("/proc/sys/kernel/version"),
    );
    let system = read("/etc/os-release");
    let pretty = system
        .lines()
        .find_map(|line| line.strip_prefix("PRETTY_NAME="));
    put(
        &mut facts,
        "kernel",
        "distribution",
        pretty.unwrap_or_default().trim_matches('"'),
    );
    tools(plan, machine, file_systems, workloads, &mut facts);
    put(&mut facts, "seeds", "run", plan.seed.to_string());
    let resolution = format!("{:.0} ns", timer_resolution().as_secs_f64() * 1e9);
    put(&mut facts, "harness", "timer resolution", resolution);
    put(&mut facts, "harness", "clock of CPU times", "10 ms");
    put(&mut facts, "harness", "version", env!("CARGO_PKG_VERSION"));
    Manifest { facts }
}

fn tools(
    plan: &Plan,
    machine: &Machine,
    file_systems: &FileSystems,
    workloads: &Catalogue,
    facts: &mut Facts,
) {
    let mut names: BTreeSet<String> = BTreeSet::new();
    for cell in plan.cells.iter().filter(|cell| cell.lack.is_none()) {
        let file_system = file_systems.get(&cell.file_system);
        let own = file_system.into_iter().flat_map(|one| &one.programs);
        names.extend(own.map(|(program, _)| program.clone()));
        let workload = workloads.get(&cell.workload);
        let own = workload.into_iter().flat_map(|one| one.programs());
        names.extend(own.map(|(program, _)| (*program).to_owned()));
    }
    for name in names {
        if let Some(path) = machine.program(&name) {
            put(facts, "tools", &name, version(&path));
        }
    }
}

/// What is known when the devices are there.
pub(super) fn of_devices(plan: &Plan, devices: &[Device], manifest: &mut Manifest) {
    let facts = &mut manifest.facts;
    let kind = match &plan.devices {
        Devices::Files(path) if plan.in_memory() => {
            format!("loop device over a file in memory ({})", path.display())
        }
        Devices::Files(path) => format!("loop device over a file in {}", path.display()),
        Devices::Blocks(paths) => {
            let names: Vec<String> = paths
                .iter()
                .map(|path| path.display().to_string())
                .collect();
            format!("block device {}", names.join(", "))
        }
    };
    put(facts, "device", "kind", kind);
    put(facts, "device", "number", devices.len().to_string());
    if matches!(plan.devices, Devices::Files(_)) {
        put(facts, "device", "size", show_size(plan.scale.device_size));
        put(
            facts,
            "device",
            "content before",
            "random bytes, without holes",
        );
    }
    if let Some(device) = devices.first() {
        let (scheduler, all) = device.schedulers();
        put(facts, "device", "scheduler", scheduler);
        put(facts, "device", "schedulers", all.join(" "));
        let direct = device
            .is_direct()
            .map(|direct| if direct { "on" } else { "off" });
        put(facts, "device", "direct I/O", direct.unwrap_or_default());
        for name in [
            "logical_block_size",
            "physical_block_size",
            "rotational",
            "read_ahead_kb",
        ] {
            put(
                facts,
                "device",
                &name.replace('_', " "),
                device.queue_value(name),
            );
        }
    }
}

/// The least time by which two readings of the clock differ.
fn timer_resolution() -> Duration {
    let mut least = Duration::MAX;
    for _ in 0..2000 {
        let start = Instant::now();
        let mut next = start;
        while next == start {
            next = Instant::now();
        }
        least = least.min(next - start);
    }
    least
}
