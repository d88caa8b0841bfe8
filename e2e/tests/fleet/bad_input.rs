//! Files that are not what they should be: a checkpoint that cannot be served, an old topology, a damaged drive.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use hypic_domain::flow::Mode;
use hypic_domain::id::Epoch;
use hypic_e2e::client::Client;
use hypic_e2e::fleet::key_of;
use hypic_e2e::pass::MAX_TOKENS;
use hypic_e2e::push::push;
use serde_json::{Value, json};

use crate::support::{Tested, binaries, metric, model, question, start, wait_for, wait_for_index};

const WEIGHTS: &str = "model.safetensors";

/// The header and the values of a safetensors file.
fn open(file: &Path) -> (Value, Vec<u8>) {
    let bytes = fs::read(file).unwrap();
    let (len, rest) = bytes.split_at(8);
    let (header, values) = rest.split_at(u64::from_le_bytes(len.try_into().unwrap()) as usize);
    (serde_json::from_slice(header).unwrap(), values.to_vec())
}

fn save(file: &Path, header: &Value, values: &[u8]) {
    let header = header.to_string().into_bytes();
    fs::write(file, [&(header.len() as u64).to_le_bytes(), &header[..], values].concat()).unwrap();
}

/// Changes one entry of a JSON file.
fn set(file: &Path, field: &str, value: Value) {
    let mut json: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    json[field] = value;
    fs::write(file, json.to_string()).unwrap();
}

/// What an agent says that is to serve hypic-tiny after `damage`; it must end by itself and with a failure.
fn refused(damage: &dyn Fn(&Path)) -> String {
    let dir = tempfile::tempdir().unwrap();
    let mut file = model();
    let checkpoint = dir.path().join("checkpoint");
    fs::create_dir(&checkpoint).unwrap();
    for entry in fs::read_dir(&file.path).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), checkpoint.join(entry.file_name())).unwrap();
    }
    damage(&checkpoint);
    file.path = checkpoint;
    let topology = json!({"epoch": 1, "agents": [
        {"id": "a", "role": "combine", "control": "127.0.0.1:1", "bulk": "127.0.0.1:1"},
    ]});
    let (model, topology_file) = (dir.path().join("model.json"), dir.path().join("topology.json"));
    fs::write(&model, serde_json::to_string(&file).unwrap()).unwrap();
    fs::write(&topology_file, topology.to_string()).unwrap();
    let log = dir.path().join("log");
    let mut agent = Command::new(binaries().join("hypic-node-agent"))
        .arg("--model")
        .arg(&model)
        .arg("--topology")
        .arg(&topology_file)
        .args(["--id", "a", "--plain", "--control-listen", "127.0.0.1:0"])
        .args(["--bulk-listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0"])
        .stdout(Stdio::null())
        .stderr(fs::File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let mut ended = None;
    for _ in 0..3000 {
        ended = agent.try_wait().unwrap();
        if ended.is_some() {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let text = fs::read_to_string(&log).unwrap();
    if ended.is_none() {
        agent.kill().unwrap();
        agent.wait().unwrap();
    }
    assert!(ended.is_some_and(|status| status.code() == Some(1)), "{ended:?}: {text}");
    text
}

/// What is done to a checkpoint, and two things that the agent must say of it.
type Case<'a> = (&'a dyn Fn(&Path), &'a str, &'a str);

#[test]
fn a_checkpoint_that_cannot_be_served_is_refused_by_file_and_reason() {
    let weights = |dir: &Path| dir.join(WEIGHTS);
    let tensor = "model.layers.0.linear_attn.in_proj_ba.weight";
    let cases: [Case<'_>; 11] = [
        (&|dir| fs::remove_file(weights(dir)).unwrap(), WEIGHTS, "can't read"),
        (
            &|dir| {
                let file = fs::File::options().write(true).open(weights(dir)).unwrap();
                file.set_len(4_000_000).unwrap();
            },
            WEIGHTS,
            "bytes",
        ),
        (
            &|dir| {
                let (mut header, values) = open(&weights(dir));
                header[tensor]["shape"].as_array_mut().unwrap().reverse();
                save(&weights(dir), &header, &values);
            },
            WEIGHTS,
            tensor,
        ),
        (
            &|dir| {
                let (mut header, values) = open(&weights(dir));
                let moved = header.as_object_mut().unwrap().remove(tensor).unwrap();
                header["other"] = moved;
                save(&weights(dir), &header, &values);
            },
            tensor,
            "in no file",
        ),
        (
            &|dir| {
                let (header, mut values) = open(&weights(dir));
                let at = header[tensor]["data_offsets"][0].as_u64().unwrap() as usize;
                values[at..at + 4].fill(0xff);
                save(&weights(dir), &header, &values);
            },
            tensor,
            "not finite",
        ),
        (&|dir| set(&dir.join("config.json"), "model_type", json!("foo")), "foo", "not supported"),
        (
            &|dir| set(&dir.join("config.json"), "quantization_config", json!({"quant_method": "awq"})),
            "awq",
            "not supported",
        ),
        (&|dir| fs::write(dir.join("tokenizer.json"), "{").unwrap(), "tokenizer.json", "parse"),
        (
            &|dir| {
                let file = dir.join("tokenizer.json");
                let mut tokenizer: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
                let token = json!({"id": 9000, "content": "<|far|>", "single_word": false, "lstrip": false,
                    "rstrip": false, "normalized": false, "special": true});
                tokenizer["added_tokens"].as_array_mut().unwrap().push(token);
                tokenizer["model"]["vocab"]["<|far|>"] = json!(9000);
                fs::write(file, tokenizer.to_string()).unwrap();
            },
            "tokenizer.json",
            "the model only",
        ),
        (
            &|dir| {
                set(&dir.join("tokenizer_config.json"), "chat_template", json!("{% for m in messages %}"));
            },
            "tokenizer_config.json",
            "line 1",
        ),
        (
            &|dir| fs::write(dir.join("chat_template.jinja"), "{{ raise_exception('no') }}").unwrap(),
            "chat_template.jinja",
            "no",
        ),
    ];
    for (damage, file, reason) in cases {
        let text = refused(damage);
        assert!(text.contains(file) && text.contains(reason), "{file}, {reason}: {text}");
    }
}

#[test]
fn an_agent_of_an_old_topology_waits_for_a_newer_one_and_the_others_go_on() {
    let mut tested = start(2, 0);
    let mut newer = tested.fleet.topology().clone();
    newer.epoch = Epoch(7);
    push(tested.fleet.dir(), &newer).unwrap();
    tested.fleet.kill("combine-1").unwrap();
    tested.fleet.start_agent("combine-1").unwrap();
    let ready = |tested: &Tested| {
        let address = tested.fleet.agent_http("combine-1").unwrap();
        Client::new(address, "", "").get("/readyz").unwrap_or_default()
    };
    wait_for("the agent to say what it waits for", || ready(&tested).1.contains("at epoch 7 and not 1"));
    assert_eq!(ready(&tested).0, 503);
    let asked = question("6x128-coref-12");
    let answer = tested.fleet.client(&key_of(Mode::Pic)).ask(&asked, MAX_TOKENS, false);
    let answer = answer.unwrap_or_else(|error| panic!("{error}: {}", tested.fleet.log("router").unwrap()));
    assert_eq!(answer.text.trim(), asked.answer);
    push(tested.fleet.dir(), &newer).unwrap();
    wait_for("the agent to go by the newer one", || ready(&tested).0 == 200);
}

#[test]
fn damage_on_the_drive_is_dropped_counted_and_computed_again() {
    let mut tested = start(1, 0);
    let asked = question("6x128-coref-12");
    let client = tested.fleet.client(&key_of(Mode::Pic));
    let right = client.ask(&asked, MAX_TOKENS, false).unwrap().text;
    wait_for_index(&tested, 6);
    // What was used again goes to the drive.
    assert_eq!(client.ask(&asked, MAX_TOKENS, false).unwrap().text, right);
    let http = tested.fleet.agent_http("combine-0").unwrap().to_owned();
    let folder = tested.fleet.dir().join("data/combine-0");
    let files = |end: &str| {
        let mut found: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        found.retain(|path| path.extension().is_some_and(|extension| extension == end));
        found.sort();
        found
    };
    wait_for("all tuples on the drive", || metric(&http, "hypic_agent_store_disk_tuples") >= 6.0);
    tested.fleet.kill("combine-0").unwrap();

    let (parts, manifests) = (files("parts"), files("manifest"));
    assert!(parts.len() >= 6 && parts.len() == manifests.len());
    let flip = |path: &Path| {
        let mut bytes = fs::read(path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(path, bytes).unwrap();
    };
    flip(&parts[0]);
    flip(&manifests[1]);
    fs::File::options().write(true).open(&parts[2]).unwrap().set_len(100).unwrap();
    // Each under the other's name.
    let fourth = fs::read(&parts[3]).unwrap();
    fs::copy(&parts[4], &parts[3]).unwrap();
    fs::write(&parts[4], fourth).unwrap();
    fs::remove_file(&parts[5]).unwrap();
    fs::create_dir(&parts[5]).unwrap();
    fs::write(folder.join("notes.txt"), "not ours").unwrap();

    tested.fleet.start_agent("combine-0").unwrap();
    tested.fleet.wait_ready(Duration::from_secs(60)).unwrap();
    let again = client.ask(&asked, MAX_TOKENS, false).unwrap();
    assert_eq!(again.text, right);
    assert_eq!(again.hypic["segments"]["built"], 6, "{:?}", again.hypic);
    // What shows at the start counts as an orphan, what shows when it is read as corrupt.
    let (corrupt, orphans) =
        (metric(&http, "hypic_agent_store_corrupt_total"), metric(&http, "hypic_agent_store_orphans_total"));
    assert!(corrupt >= 1.0 && corrupt + orphans >= 6.0, "{corrupt} corrupt, {orphans} orphans");
    assert!(again.hypic["cold"].as_array().unwrap().iter().any(|cold| cold["reason"] == "corrupt"));
    assert_eq!(fs::read_to_string(folder.join("notes.txt")).unwrap(), "not ours");
    wait_for_index(&tested, 6);
    let warm = client.ask(&asked, MAX_TOKENS, false).unwrap();
    assert_eq!((warm.text, &warm.hypic["segments"]["built"]), (right, &json!(0)));
}
