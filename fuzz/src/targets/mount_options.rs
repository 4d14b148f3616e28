//! Strings of mount options, and other strings of the same form.

use crate::meter::bounded;
use butterfs::{MountOptions, OPTIONS};
use butterfs_admin::mkfs::FeatureSet;
use butterfs_format::ChecksumType;
use butterfs_format::compression::Method;

/// Text; bytes that are no UTF-8 are replaced.
pub fn run(data: &[u8]) {
    bounded(16 << 20, || {
        let text = String::from_utf8_lossy(data);
        if let Ok(options) = MountOptions::parse(&text) {
            let open = options.open_options();
            assert!(open.files.threads > 0);
        }
        if let Some(Some(method)) = Method::parse(&text) {
            assert_eq!(Method::parse(&method.to_string()), Some(Some(method)));
        }
        let _ = FeatureSet::default().change(&text);
        let _ = ChecksumType::from_name(&text);
        // Every name with this as its value.
        if let Some((first, rest)) = data.split_first() {
            let name = OPTIONS[usize::from(*first) % OPTIONS.len()].name;
            let value = String::from_utf8_lossy(rest);
            let _ = MountOptions::parse(&format!("{name}={value}"));
        }
    });
}
