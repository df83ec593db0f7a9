//! Files of the catalogs: devices and models.

use crate::{assert_in_order, in_time, model::assert_model, text};
use plimsoll_catalog::{device_file as device, models};

/// A device file. Intervals are in order, errors name the file.
pub fn device_file(data: &[u8]) {
    let Some(text) = text(data) else { return };
    match in_time(|| device::read("fuzz", text)) {
        Ok(profile) => {
            assert_in_order("runtime_total", profile.runtime_total.value);
            if let Some(context) = &profile.context {
                assert_in_order("context", context.value);
            }
            if let Some(rate) = &profile.bandwidth_gb_s {
                assert!(rate.value.low <= rate.value.high, "bandwidth is out of order");
            }
            assert_eq!(device::read("fuzz", text), Ok(profile), "reads otherwise a second time");
        }
        Err(error) => {
            let message = error.to_string();
            assert!(message.starts_with("fuzz: ") && message.len() > 6, "{message:?}");
        }
    }
}

/// A model entry. What is read can be billed, errors name the file.
pub fn model_entry(data: &[u8]) {
    let Some(text) = text(data) else { return };
    match in_time(|| models::read_text("fuzz", text)) {
        Ok(entry) => assert_model(&entry.model),
        Err(error) => {
            let message = error.to_string();
            assert!(message.contains("fuzz.yaml: "), "{message:?} does not name the file");
        }
    }
}
