//! Both forms there and back, the opcodes of the viewer, hostile bytes.

use super::*;
use crate::{
    memory::caching_allocator::{
        CachingAllocator, CountingSource, History, Setup, TorchVersion, segment_size,
    },
    units::{GIB, MIB},
};

fn sample() -> Snapshot {
    let conf = "roundup_power2_divisions:[256:1,>:4],max_split_size_mb:200";
    let options = Options::parse(conf, TorchVersion::NEWEST).unwrap();
    let history = History::All;
    let mut cache = CachingAllocator::new(Setup { options, history, ..Setup::new(GIB) });
    let mut device = CountingSource::new(GIB);
    assert!(cache.malloc(&mut device, 2 * GIB, StreamId(0)).is_err());
    let a = cache.malloc(&mut device, 100, StreamId(0)).unwrap();
    cache.set_time_us(1_700_000_000_000_123);
    let b = cache.malloc(&mut device, 30 * MIB, StreamId(0x7f12_3456_7890)).unwrap();
    cache.malloc(&mut device, 15 * MIB, StreamId(0)).unwrap();
    cache.record_stream(b, StreamId(1)).unwrap();
    cache.free(a).unwrap();
    cache.free(b).unwrap();
    let mut snapshot = cache.snapshot(0);
    let frame = |line| Frame { filename: "run \"α\".py\n".into(), line, name: "forward".into() };
    snapshot.stacks = vec![vec![], vec![frame(3), frame(70_000)]];
    snapshot.segments[0].stack = StackId(1);
    snapshot.segments[0].blocks[0].stack = StackId(1);
    snapshot.device_traces[0][1].stack = StackId(1);
    snapshot.device_traces[0][1].user_metadata = "step 7".into();
    snapshot.external_annotations = Some(Value::List(vec![
        Value::Null,
        Value::Int(-3_000_000_000),
        Value::Float(0.25),
        Value::Bool(true),
        Value::Dict(vec![("key".into(), Value::Int(-1))]),
    ]));
    snapshot
}

#[test]
fn what_is_written_reads_back_in_every_form() {
    let snapshot = sample();
    assert!(snapshot.device_traces[0].iter().any(|e| e.action.name() == "oom"));
    assert_eq!(from_bytes(to_json(&snapshot).as_bytes()).unwrap(), snapshot);
    for protocol in [PickleProtocol::V2, PickleProtocol::V3, PickleProtocol::V4] {
        assert_eq!(from_bytes(&to_pickle(&snapshot, protocol)).unwrap(), snapshot, "{protocol:?}");
    }
}

/// The opcodes that the reader of the `memory_viz` page knows.
const VIZ: &[u8] = b"\x80\x95(.}])t\x85\x86\x87ldaesuN\x88\x89KMJ\x8aG\x8cXhjqr\x94";

#[test]
fn a_pickle_holds_only_opcodes_that_the_viewer_reads() {
    let bytes = to_pickle(&sample(), PickleProtocol::V4);
    let mut at = 0;
    let mut seen = std::collections::BTreeSet::new();
    while at < bytes.len() {
        let opcode = bytes[at];
        assert!(VIZ.contains(&opcode), "{opcode:#04x} at {at}");
        seen.insert(opcode);
        at += 1 + match opcode {
            0x80 | b'K' | b'h' | b'q' => 1,
            b'M' => 2,
            b'J' | b'j' | b'r' => 4,
            b'G' => 8,
            0x8a | 0x8c => 1 + usize::from(bytes[at + 1]),
            b'X' => 4 + u32::from_le_bytes(bytes[at + 1..at + 5].try_into().unwrap()) as usize,
            _ => 0,
        };
    }
    assert!(seen.len() > 15, "the sample uses too little: {seen:?}");
}

#[test]
fn json_is_as_torch_names_it() {
    let json: serde_json::Value = serde_json::from_str(&to_json(&sample())).unwrap();
    let segment = &json["segments"][0];
    assert_eq!(segment["segment_type"], "small");
    assert_eq!(segment["segment_pool_id"], serde_json::json!([0, 0]));
    assert_eq!(segment["is_expandable"], false);
    assert_eq!(segment["blocks"][0]["state"], "inactive");
    let waits = json["segments"].as_array().unwrap().iter().flat_map(|s| s["blocks"].as_array());
    assert!(waits.flatten().any(|b| b["state"] == "active_awaiting_free"));
    let oom = json["device_traces"][0].as_array().unwrap().first().unwrap();
    let options = Options::default();
    let asked = segment_size(2 * GIB, &options).unwrap();
    assert_eq!((oom["action"].as_str(), oom["size"].as_u64()), (Some("oom"), Some(asked)));
    assert!(oom.get("addr").is_none() && oom["device_free"].is_u64());
    let settings = &json["allocator_settings"];
    assert_eq!(settings["max_split_size"], 200 * MIB);
    assert_eq!(settings["roundup_power2_divisions"]["512"], 4);
}

#[test]
fn a_pickle_as_python_writes_it_is_read() {
    // Written by CPython 3.12 with frame and memo: one segment without addresses of blocks, one entry.
    const PROTOCOL_2: &str = "\
        80027d71002858080000007365676d656e747371015d71027d710328580600000064657669636571044b005807000000\
        6164647265737371058a0600c0444a547f580a000000746f74616c5f73697a6571064a00002000580600000073747265\
        616d71074b00580c0000007365676d656e745f7479706571085805000000736d616c6c7109580f0000007365676d656e\
        745f706f6f6c5f6964710a4b004b0086710b580d00000069735f657870616e6461626c65710c8958060000006672616d\
        6573710d5d710e5806000000626c6f636b73710f5d7110287d711128580400000073697a6571124d0002580500000073\
        74617465711358130000006163746976655f70656e64696e675f667265657114757d71152868124a00fe1f0068135808\
        000000696e616374697665711675657561580d0000006465766963655f74726163657371175d71185d71197d711a2858\
        06000000616374696f6e711b5805000000616c6c6f63711c580400000061646472711d8a0600c0444a547f68124b6468\
        074b00580700000074696d655f7573711e8a077b401e18240a06680d5d711f7d712028580800000066696c656e616d65\
        71215804000000612e7079712258040000006c696e6571234d2c0158040000006e616d65712458010000006671257561\
        756161752e";
    const PROTOCOL_4: &str = "\
        80049572010000000000007d94288c087365676d656e7473945d947d94288c06646576696365944b008c076164647265\
        7373948a0600c0444a547f8c0a746f74616c5f73697a65944a000020008c0673747265616d944b008c0c7365676d656e\
        745f74797065948c05736d616c6c948c0f7365676d656e745f706f6f6c5f6964944b004b0086948c0d69735f65787061\
        6e6461626c6594898c066672616d6573945d948c06626c6f636b73945d94287d94288c0473697a65944d00028c057374\
        617465948c136163746976655f70656e64696e675f6672656594757d942868124a00fe1f0068138c08696e6163746976\
        6594756575618c0d6465766963655f747261636573945d945d947d94288c06616374696f6e948c05616c6c6f63948c04\
        61646472948a0600c0444a547f68124b6468074b008c0774696d655f7573948a077b401e18240a06680d5d947d94288c\
        0866696c656e616d65948c04612e7079948c046c696e65944d2c018c046e616d65948c0166947561756161752e";
    let bytes = |hex: &str| -> Vec<u8> {
        let pairs = hex.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
        pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
    };
    let snapshot = from_bytes(&bytes(PROTOCOL_2)).unwrap();
    assert_eq!(snapshot, from_bytes(&bytes(PROTOCOL_4)).unwrap());
    let segment = &snapshot.segments[0];
    assert_eq!(segment.class, SizeClass::Small);
    assert_eq!(segment.blocks[0].state, BlockState::ActiveAwaitingFree);
    assert_eq!(segment.blocks[1].address, segment.address + 512, "the running sum");
    assert_eq!(snapshot.allocator_settings, None);
    let entry = &snapshot.device_traces[0][0];
    assert_eq!((entry.address, entry.time_us), (140_000_000_000_000, 1_700_000_000_000_123));
    assert_eq!(snapshot.frames(entry.stack)[0].line, 300);
}

#[test]
fn errors_name_the_place() {
    let text = |bytes: &[u8]| from_bytes(bytes).unwrap_err().to_string();
    assert_eq!(
        text(br#"{"segments":[{"address":0,"total_size":8,"blocks":[{"size":-8,"state":"inactive"}]}]}"#),
        "snapshot, segments[0].blocks[0].size: should be a whole number from 0 to 2^64 - 1"
    );
    assert_eq!(
        text(
            br#"{"segments":[{"address":0,"total_size":8,"blocks":[{"size":8,"state":"busy"}]}]}"#
        ),
        "snapshot, segments[0].blocks[0].state: is `busy`; allowed: `active_allocated`, `active_awaiting_free`, \
         `inactive`"
    );
    assert_eq!(text(b"{}"), "snapshot, : has no `segments`");
    assert_eq!(text(b"PK"), "neither a JSON object nor a pickle (first byte Some(80))");
    assert!(text(b"{\"segments\":[").starts_with("JSON, line 1, column 13"));
    assert_eq!(text(b"\x80\x04]"), "pickle, byte 3: cut short");
    // os.system by name, the classic.
    let hostile = text(b"\x80\x02cos\nsystem\n");
    assert!(
        hostile.starts_with("pickle, byte 2: opcode 0x63 builds more than plain data"),
        "{hostile}"
    );
}

#[test]
fn shared_containers_cannot_unfold_without_bound() {
    // One list of blocks, memoised, held by ten thousand segments that are one dictionary.
    let mut bytes = b"\x80\x02}X\x08\x00\x00\x00segments](}(X\x06\x00\x00\x00blocks](".to_vec();
    for _ in 0..10_000 {
        bytes.extend(
            b"}(X\x04\x00\x00\x00sizeK\x01X\x05\x00\x00\x00stateX\x08\x00\x00\x00inactiveu",
        );
    }
    bytes.extend(b"eX\x07\x00\x00\x00addressK\x00X\x0a\x00\x00\x00total_sizeK\x00uq\x00");
    for _ in 0..100_000 {
        bytes.extend(b"h\x00");
    }
    bytes.extend(b"es.");
    let error = from_bytes(&bytes).unwrap_err().to_string();
    assert!(error.contains("unfolds into far more than its bytes"), "{error}");
    // A list that holds itself.
    let cyclic =
        from_bytes(b"\x80\x02}X\x12\x00\x00\x00allocator_settings]q\x00h\x00as.").unwrap_err();
    assert!(cyclic.to_string().ends_with("is nested too deep"), "{cyclic}");
}

mod hostile {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

        #[test]
        fn changed_bytes_never_panic(
            changes in proptest::collection::vec((any::<usize>(), any::<u8>()), 1..8),
            cut in any::<usize>(),
            json in any::<bool>(),
        ) {
            let snapshot = sample();
            let mut bytes = if json {
                to_json(&snapshot).into_bytes()
            } else {
                to_pickle(&snapshot, PickleProtocol::V4)
            };
            for (at, byte) in changes {
                let at = at % bytes.len();
                bytes[at] = byte;
            }
            bytes.truncate(1 + cut % (2 * bytes.len()));
            if let Ok(read) = from_bytes(&bytes) {
                // What is read can be restored or is refused.
                let _ = CachingAllocator::restore(Setup::new(GIB), &read.segments);
            }
        }

        #[test]
        fn any_opcodes_never_panic(bytes in proptest::collection::vec(
            prop_oneof![4 => proptest::sample::select(VIZ), 1 => any::<u8>()], 0..200)) {
            let mut pickle = vec![0x80, 4];
            pickle.extend(bytes);
            let _ = from_pickle(&pickle);
        }
    }
}
