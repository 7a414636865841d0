use super::*;

fn check(source: &str, expected: &str) {
    let mut environment = Environment::new();
    add_to(&mut environment);
    let line = r#"{"items": 1, "s": "ab", "l": [3, "x\u00a0\u200b'", null, 1e20], "d": {"b": 1, "a": {}}}"#;
    let value: Value = serde_json::from_str(line).expect("JSON");
    let numbered: Value = serde_json::from_str(r#"[{"items": 2}, {"items": 1}]"#).expect("JSON");
    let variables = [("v", as_python(&value)), ("m", as_python(&numbered))];
    let found = environment.render_str(source, Value::from_pairs(variables));
    assert_eq!(found.as_deref().ok(), Some(expected), "{source}: {found:?}");
}

fn refuse(source: &str, expected: &str) {
    let mut environment = Environment::new();
    add_to(&mut environment);
    let error = environment.render_str(source, ()).expect_err(source).to_string();
    assert!(error.contains(expected), "{source}: {error}");
}

#[test]
fn values_are_written_as_in_python() {
    let rows = [
        ("{{ v ~ '' == v|string }}{{ [v] ~ '' == [v]|string }}", "TrueTrue"),
        ("{{ v.l }}", r#"[3, "x\xa0\u200b'", None, 1e+20]"#),
        ("{{ v.d }}{{ v.d.a }}{{ (1,) }}{{ () }}", "{'b': 1, 'a': {}}{}(1,)()"),
        (
            "{{ ['it\\'s \"q\"', '\\\\', '\u{7f}\u{e000}\u{10ffff}é'] }}",
            r#"['it\'s "q"', '\\', '\x7f\ue000\U0010ffffé']"#,
        ),
        ("{{ [nope, true, 1.0][:2] }}{{ v.l[:1] + [2] }}", "[Undefined, True][3, 2]"),
        (
            "{{ v.d.keys() }}{{ v.d.items() }}{{ {'a': 1}.values() }}",
            "dict_keys(['b', 'a'])dict_items([('b', 1), ('a', {})])dict_values([1])",
        ),
        (
            "{{ 1e16 }}{{ 1e20|string }}{{ [1e-5, none]|join('|') }}{{ 1e20|safe }}",
            "1e+161e+201e-05|None1e+20",
        ),
    ];
    rows.iter().for_each(|(source, expected)| check(source, expected));
}

#[test]
fn dicts_and_lists_have_the_methods_of_python() {
    let rows = [
        // A method comes before a key of its name, unless the key is in brackets, or a filter's.
        (
            "{{ [v]|map(attribute='items')|list }}{{ [v]|sum('items') }}{{ [v]|join('', 'items') }}",
            "[1]11",
        ),
        (
            "{{ [v]|selectattr('items', 'eq', 1)|list|length }}{{ [v]|rejectattr('get')|list|length }}",
            "11",
        ),
        (
            "{{ ([v]|groupby('items'))[0].grouper }}{{ [v]|groupby('keys', default=2)|first|first }}",
            "12",
        ),
        ("{{ m|sort(attribute='items')|map(attribute='items')|list }}", "[1, 2]"),
        (
            "{{ (m|max(attribute='items'))['items'] }}{{ (m|min(attribute='items'))['items'] }}",
            "21",
        ),
        ("{{ m|unique(attribute='copy')|list|length }}{{ v|attr('items') is defined }}", "1False"),
        ("{{ v['items'] }}{{ v.items is callable }}{{ v.items.x }}{{ 'items' in v }}", "1TrueTrue"),
        ("{{ v.get is defined }}{{ 'get' in v }}{{ v.d.items() | length }}", "TrueFalse2"),
        ("{% set items = v.d.items %}{% for k, x in items() %}{{ k }}{% endfor %}", "ba"),
        ("{{ v.get('s') }}{{ v.get('n') }}{{ v.get('n', 'd') }}{{ v.copy() == v }}", "abNonedTrue"),
        (
            "{{ v.d | items | first | last }}{{ v.d | tojson }}{{ v.d | length }}",
            r#"1{"b": 1, "a": {}}2"#,
        ),
        (
            "{{ [1, 2, 1].count(1) }}{{ [1, 2].index(2) }}{{ (1, 2).index(1) }}{{ [1].copy() }}",
            "210[1]",
        ),
    ];
    rows.iter().for_each(|(source, expected)| check(source, expected));
    refuse("{{ [].append(1) }}", "append changes the list, which templates may not");
    refuse("{{ {}.update({}) }}", "update changes the dict, which templates may not");
    refuse("{{ [1].index(2) }}", "index: the value is not in the list");
}

#[test]
fn strings_have_the_methods_of_python() {
    let rows = [
        (
            "{{ ' a b '.split() }}{{ 'a b c'.split(none, 1) }}{{ 'a,b,c'.rsplit(',', 1) }}",
            "['a', 'b']['a', 'b c']['a,b', 'c']",
        ),
        (
            "{{ 'a,b'.split(sep=',', maxsplit=0) }}{{ ' a  b '.rsplit(maxsplit=1) }}",
            "['a,b'][' a', 'b']",
        ),
        (
            "{{ 'a\\r\\nb\\u2028c'.splitlines() }}{{ 'a\\nb\\n'.splitlines(true) }}",
            r"['a', 'b', 'c']['a\n', 'b\n']",
        ),
        ("{{ 'a=b=c'.partition('=') }}{{ 'b'.rpartition('=') }}", "('a', '=', 'b=c')('', '', 'b')"),
        (
            "{{ 'éaba'.find('a', 2) }}{{ 'aba'.rfind('a', 0, -1) }}{{ 'a'.find('z') }}{{ 'éa'.index('a') }}",
            "30-11",
        ),
        (
            "{{ 'aaa'.count('a', 1) }}{{ 'ab'.startswith(('x', 'b'), 1) }}{{ 'ab'.endswith('a', 0, 1) }}",
            "2TrueTrue",
        ),
        (
            "[{{ 'ab'.center(5) }}][{{ 'a'.ljust(3, '.') }}][{{ 'a'.rjust(3) }}][{{ '-7'.zfill(4) }}]",
            "[  ab ][a..][  a][-007]",
        ),
        (
            "{{ \"it's 3rd ǆ\".title() }}{{ 'straße'.casefold() }}{{ 'aBß'.swapcase() }}{{ 'ǆA'.capitalize() }}",
            "It'S 3Rd ǅstrasseAbSSǅa",
        ),
        (
            "{{ '²'.isdigit() }}{{ '²'.isdecimal() }}{{ '½'.isnumeric() }}{{ 'ⅷ'.isalpha() }}{{ '一'.isnumeric() }}",
            "TrueFalseTrueFalseTrue",
        ),
        (
            "{{ 'Ab Cd'.istitle() }}{{ 'A1'.isupper() }}{{ ''.isalnum() }}{{ 'a_1'.isidentifier() }}{{ '\u{a0}'.isprintable() }}",
            "TrueTrueFalseTrueFalse",
        ),
        (
            "{{ 'a\tb'.expandtabs(4) }}{{ 'aba'.replace('a', 'x', 1) }}{{ ','.join(['p', 'q']) }}",
            "a   bxbap,q",
        ),
        ("{{ '\u{1f}a\u{a0}'.strip() }}{{ 'xax'.lstrip('x') }}{{ 'a{}'.format(1) }}", "aaxa1"),
    ];
    rows.iter().for_each(|(source, expected)| check(source, expected));
    refuse("{{ 'a'.index('b') }}", "index: the text has no \"b\"");
    refuse("{{ ','.join([1]) }}", "join: item 0 is number, not a text");
    refuse("{{ 'a'.split('') }}", "split: the separator is empty");
    refuse("{{ 'a'.strip(1) }}", "strip: chars is number; expected a text");
    refuse("{{ 'a'.partition('b', x=1) }}", "'x'");
    refuse("{{ 'a'.removeprefix('b', x=1) }}", "'x'");
    refuse("{{ 'a'.zfill(1, '0') }}", "zfill takes 1 arguments, not 2");
    refuse("{{ 'a'.upper(1) }}", "upper takes 0 arguments, not 1");
    refuse("{{ 'a'.encode() }}", "string has no method named encode");
}

#[test]
fn filters_and_tests_are_those_of_jinja() {
    let rows = [
        (
            "{{ ''|indent }}[{{ 'a\\n\\nb\\n'|indent(1, true, true) }}]{{ 'a\\nb'|indent('>') }}",
            "[ a\n \n b\n ]a\n>b",
        ),
        (
            "{{ ''|default('d', boolean=true) }}{{ nope|default(default_value=2) }}{{ none|d('x') }}",
            "d2None",
        ),
        (
            "{{ 'a'|center(3) }}|{{ 'hello world'|truncate(5, leeway=0) }}{{ 'a b_c, é'|wordcount }}",
            " a |he...3",
        ),
        (
            "{{ 'x'|int }}{{ ' 1_0 '|int }}{{ '3.9'|int }}{{ '0x1F'|int(0, 16) }}{{ 'q'|int(7) }}",
            "0103317",
        ),
        (
            "{{ 'x'|float }}{{ '1e3'|float }}{{ 2|float }}{{ none|float(1.5) }}{{ true|int }}",
            "0.01000.02.01.51",
        ),
        (
            "{{ ['b', 'A']|sort(true) }}{{ ['a', 'A']|unique(true)|list }}{{ {'b': 1, 'a': 2}|dictsort(false, 'value') }}",
            "['b', 'A']['a', 'A'][('b', 1), ('a', 2)]",
        ),
        (
            "{{ [{'a': 1}, {'a': 2}]|join('-', 'a') }}{{ 1.5|replace(5, 'x') }}{{ none|upper }}",
            "1-21.xNONE",
        ),
        (
            "{{ '<'|e|e }}{{ '<'|e|forceescape }}{{ {'a': 1}|attr('a') is defined }}",
            "&lt;&lt;False",
        ),
        (
            "{{ none is iterable }}{{ nope is iterable }}{{ '' is sequence }}{{ {}.items() is sequence }}",
            "FalseTrueTrueFalse",
        ),
        (
            "{{ range is callable }}{{ debug is defined }}{{ 'a' is lower }}{{ 'split' is filter }}",
            "TrueFalseTrueFalse",
        ),
        (
            "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{% set j = joiner() %}{{ j() }}{{ j() }}",
            "ab, ",
        ),
    ];
    rows.iter().for_each(|(source, expected)| check(source, expected));
    refuse("{{ nope|int }}", "int: the value is undefined");
    refuse("{{ 'a,b'|split(',') }}", "filter split is unknown");
}

#[test]
fn json_is_that_of_json_dumps() {
    let rows = [
        (
            "{{ {'b': [1.0, none], 'a': {}}|tojson(sort_keys=true) }}",
            r#"{"a": {}, "b": [1.0, null]}"#,
        ),
        ("{{ {'b': [1, []]}|tojson(separators=(',', ':')) }}", r#"{"b":[1,[]]}"#),
        (
            "{{ [1, {'a': 2}]|tojson(indent=1) }}{{ [1]|tojson(indent='>') }}{{ [1]|tojson(indent=0) }}",
            "[\n 1,\n {\n  \"a\": 2\n }\n][\n>1\n][\n1\n]",
        ),
        ("{{ 'é\u{7f}\u{2028}😀\u{8}<'|tojson }}", "\"é\u{7f}\u{2028}😀\\b<\""),
        (
            "{{ 'é\u{7f}😀\u{1f}'|tojson(ensure_ascii=true) }}{{ 'é'|tojson(true) }}",
            "\"\\u00e9\\u007f\\ud83d\\ude00\\u001f\"\"\\u00e9\"",
        ),
        (
            "{{ {1: 'a', none: 2, false: 1e20}|tojson }}{{ v.l[:1]|tojson }}",
            "{\"1\": \"a\", \"null\": 2, \"false\": 1e+20}[3]",
        ),
    ];
    rows.iter().for_each(|(source, expected)| check(source, expected));
    refuse("{{ nope|tojson }}", "tojson: undefined is no value of JSON");
    refuse("{{ {(1, 2): 1}|tojson }}", "tojson: sequence is no key of JSON");
    refuse("{{ 1|tojson(compact=true) }}", "compact");
}

#[test]
fn the_views_of_a_dict_cost_as_much_as_it_is_long() {
    let mut environment = Environment::new();
    add_to(&mut environment);
    environment.set_fuel(Some(1000));
    let dict = Value::from_pairs((0..2000).map(|key| (key.to_string(), key)));
    for name in ["keys", "values", "items"] {
        for dict in [&dict, &as_python(&dict)] {
            let source = format!("{{{{ v.{name}() is none }}}}");
            let found = environment.render_str(&source, Value::from_pairs([("v", dict.clone())]));
            assert_eq!(found.map_err(|error| error.kind()), Err(ErrorKind::OutOfFuel), "{name}");
        }
    }
}
