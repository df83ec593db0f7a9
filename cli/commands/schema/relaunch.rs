//! JSON schema of `doctor --before-relaunch`.

use super::{list_of, object, or_null, text, truth, whole};
use serde_json::{Value, json};

/// The schema of what stands before a relaunch.
pub(super) fn before_relaunch() -> Value {
    let kinds = [
        "server", "orphan", "stuck", "zombie", "holder", "device", "segments", "cgroup", "locked",
        "port", "unread",
    ];
    let finding = object(json!({
        "kind": { "enum": kinds },
        "in_the_way": truth(),
        "device": or_null(whole()),
        "pids": list_of(whole()),
        "bytes": or_null(whole()),
        "text": text(),
    }));
    let device = object(json!({
        "index": whole(),
        "name": text(),
        "free_bytes": whole(),
        "baseline_bytes": whole(),
        "back": truth(),
    }));
    let process = object(json!({
        "pid": whole(),
        "parent": whole(),
        "state": text(),
        "role": text(),
        "resident_bytes": whole(),
        "locked_bytes": whole(),
        "device_files": or_null(list_of(text())),
    }));
    let segment =
        object(json!({ "name": text(), "of": text(), "bytes": whole(), "held": truth() }));
    let host = object(json!({
        "total_bytes": whole(),
        "headroom_bytes": or_null(whole()),
        "locked_bytes": or_null(whole()),
        "unevictable_bytes": or_null(whole()),
        "cgroup_used_bytes": or_null(whole()),
        "cgroup_limit_bytes": or_null(whole()),
    }));
    let step = || list_of(object(json!({ "text": text(), "command": or_null(text()) })));
    object(json!({
        "schema": { "const": "plimsoll.before_relaunch/1" },
        "clear": truth(),
        "headline": text(),
        "findings": list_of(finding),
        "devices": list_of(device),
        "processes": list_of(process),
        "segments": object(json!({ "of_servers": list_of(segment), "others_bytes": whole() })),
        "host": or_null(host),
        "port": or_null(object(json!({ "number": whole(), "taken": truth() }))),
        "look": step(),
        "free": step(),
    }))
}
