//! Whole runs on devices, and workloads with the programs that they start.

mod running;
mod workloads;
