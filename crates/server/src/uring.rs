//! Whether the kernel offers FUSE over io_uring.

/// The parameter of the kernel that lets FUSE use io_uring.
const ENABLE_URING: &str = "/sys/module/fuse/parameters/enable_uring";

/// Makes the kernel offer io_uring, as root may.
pub(crate) fn offer_uring() {
    let is_off = std::fs::read_to_string(ENABLE_URING).is_ok_and(|value| value.trim() == "N");
    if is_off && std::fs::write(ENABLE_URING, "1").is_ok() {
        tracing::info!("{ENABLE_URING} was switched on, and stays on until the next boot");
    }
}

/// Why requests come through /dev/fuse although io_uring was wanted.
pub(crate) fn why_not_uring() -> String {
    let reason = match std::fs::read_to_string(ENABLE_URING) {
        Ok(value) if value.trim() == "N" => {
            format!("it is switched off; as root, `echo 1 > {ENABLE_URING}`")
        }
        Ok(_) => "this process may not have a ring (see the line above)".to_owned(),
        Err(_) => "this kernel has no FUSE over io_uring; Linux 6.14 has".to_owned(),
    };
    format!("requests come through /dev/fuse instead of io_uring: {reason}")
}
