use super::*;
use crate::MessageRole::{Assistant, System, User};

fn compile(source: &str) -> ChatTemplate {
    let tokens = [("bos_token", "<s>".to_owned())];
    ChatTemplate::compile(source, &tokens, &[]).expect("the template is well formed")
}

fn check(source: &str, expected: &str) {
    let conversation = Conversation::new([(User, "Hi"), (Assistant, "\u{1f} Ho\n")]);
    let rendered = compile(source).render(&conversation, 2, &TemplateOptions::default());
    assert_eq!(rendered.expect("it renders").text, expected, "{source}");
}

#[test]
fn templates_find_what_they_expect_of_python() {
    check("{{ bos_token }}{{ eos_token }}{{ messages[1]['content'] | trim }}", "<s>Ho");
    check("{{ messages[1].content.strip() }}{{ 'xay'.lstrip('xy') }}", "Hoay");
    check("{{ messages[0] | tojson }}", r#"{"role": "user", "content": "Hi"}"#);
    check("{{ [1, '<é>'] | tojson(indent=2) }}", "[\n  1,\n  \"<é>\"\n]");
    check("{{ none }}{{ true }}{{ 1 == 2 }}{{ 1 }}", "NoneTrueFalse1");
    check(
        "{% for m in messages %}{% if loop.last %}{% break %}{% endif %}{{ m.role }}{% endfor %}",
        "user",
    );
    check("{% for m in messages[::-1] %}{{ m.role }},{% endfor %}", "assistant,user,");
    check("{% set n = namespace(x=1) %}{% set n.x = 2 %}{{ n.x }}\n", "2");
    check("  {% if true %}\n  a\n  {% endif %}\nb\n", "  a\nb");
    check("{{ strftime_now is defined }}", "False");
    check("{% if tools is not none %}x{% endif %}{{ 'a,b'.split(',')[-1] }}", "b");
    check(
        "{{ 1e-7 }} {{ {'x': 0.00001, 'y': [2.0]} | tojson }}",
        r#"1e-07 {"x": 1e-05, "y": [2.0]}"#,
    );
    check("{{ [1e20] | tojson(indent=1) }}", "[\n 1e+20\n]");
    check("{{ 'a' is sequence }}{{ [1] is sequence }}{{ 1 is sequence }}", "TrueTrueFalse");
    check("{{ '</a> \"b\"' | e }}", "&lt;/a&gt; &#34;b&#34;");
    check("{{ 'a=b=c'.partition('=')[2] }}{{ 'a=b=c'.rpartition('=')[0] }}", "b=ca=b");
    check(
        "{{ 'xax'.removeprefix('x').removesuffix('y') }}{{ 'b'.partition('=') | length }}",
        "ax3",
    );
    check("{{ {'k': 1}.items() | list | length }}{{ 'ab'.startswith('a') }}", "1True");
}

#[test]
fn a_template_that_writes_the_day_needs_one() {
    let template = compile("{{ strftime_now('%d %B %Y') }}{{ strftime_now is defined }}");
    let conversation = Conversation::new([]);
    let date = "2024-07-06".parse().expect("a date");
    let dated = TemplateOptions { date: Some(date), ..TemplateOptions::default() };
    let rendered = template.render(&conversation, 0, &dated).expect("it renders");
    assert_eq!(rendered.text, "06 July 2024True");
    let options = TemplateOptions::default();
    let failure = template.render(&conversation, 0, &options).expect_err("it has no date");
    assert_eq!(template.locate(&conversation, &options, failure), ChatError::NoDate);
    let other = compile("{{ strftime_now_utc() }}");
    let failure = other.render(&conversation, 0, &options).expect_err("there is no such function");
    let failure = other.locate(&conversation, &options, failure);
    assert!(matches!(failure, ChatError::Failed { .. }), "{failure}");
    assert!(!failure.is_of_conversation());
}

#[test]
fn generation_blocks_mark_answers_and_leave_the_text_as_it_is() {
    let source = "{%- for m in messages %}\n  <{{ m.role }}>\n  {%- generation -%}  \n {{ m.content }}!\n  {% endgeneration %}\n{% endfor %}";
    let plain = source.replace("endgeneration", "endif").replace("generation", "if true");
    let conversation = Conversation::new([(User, "a"), (Assistant, "é")]);
    let options = TemplateOptions::default();
    let marked = compile(source).render(&conversation, 2, &options).expect("it renders");
    let plain = compile(&plain).render(&conversation, 2, &options).expect("it renders");
    assert_eq!(marked.text, plain.text);
    let answers: Vec<_> =
        marked.generations.iter().map(|range| &marked.text[range.clone()]).collect();
    assert_eq!(answers, ["a!\n", "é!\n"]);
}

#[test]
fn generation_blocks_are_statements_with_a_scope_and_nothing_else() {
    let is_marked = |source: &str| compile(source).has_generation();
    assert!(is_marked("{%+ generation %}a{%- endgeneration %}"));
    assert!(!is_marked("{# {% generation %} around answers {% endgeneration %} #}{{ 1 }}"));
    check("{{ '{% generation %}' }}{{ \"%}\\\"\" }}{ {", "{% generation %}%}\"{ {");
    check(
        "{% raw %}{% generation %}{{ {% endraw %}{% if '%}' %}x{% endif %}",
        "{% generation %}{{ x",
    );
    let scoped = "{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}";
    check(scoped, "21");
}

#[test]
fn failures_have_the_message_and_the_cause() {
    let conversation = Conversation::new([(System, "s"), (User, "a"), (User, "b")]);
    let options = TemplateOptions::default();
    let failure = |source| {
        let template = compile(source);
        let failure = template.render(&conversation, 3, &options).expect_err("it fails");
        template.locate(&conversation, &options, failure)
    };
    let refused = failure(
        "{% for m in messages %}{% if loop.index0 > 1 and m.role == 'user' %}{{ raise_exception('roles must alternate') }}{% endif %}{% endfor %}",
    );
    assert_eq!(
        refused,
        ChatError::Refused { message: 2, cause: "roles must alternate".to_owned() }
    );
    let failed = failure(
        "{% for m in messages %}\n{% if m.role == 'user' %}{{ m.name.x }}{% endif %}{% endfor %}",
    );
    assert!(matches!(failed, ChatError::Failed { message: 1, line: 2, .. }), "{failed}");
    assert!(failed.is_of_conversation() && refused.is_of_conversation());
    for unknown in ["{{ 'a'|nonsense }}", "{{ 'a' is nonsense }}", "{{ nonsense() }}"] {
        let unknown = failure(unknown);
        assert!(matches!(unknown, ChatError::Failed { .. }), "{unknown}");
        assert!(!unknown.is_of_conversation(), "{unknown}");
    }
    let endless =
        failure("{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}");
    assert!(matches!(endless, ChatError::Failed { message: 0, .. }), "{endless}");
    let malformed =
        ChatTemplate::compile("\n{% nonsense %}", &[], &[]).expect_err("it is malformed");
    assert!(matches!(malformed, ChatError::Malformed { line: 2, .. }), "{malformed}");
    assert!(!malformed.is_of_conversation());
}

#[test]
fn a_template_that_writes_without_end_is_refused() {
    let source = "{% for a in range(9999) %}{{ 'long ' * 9999 }}{% endfor %}";
    let failure = compile(source).render(&Conversation::new([]), 0, &TemplateOptions::default());
    assert_eq!(describe(&failure.expect_err("500 MB")), "it writes more than 67108864 bytes");
}

#[test]
fn no_filter_or_method_makes_a_text_that_takes_all_memory() {
    let doubled = "{% set n = namespace(a=['x' * 99999, 1]) %}{% for _ in range(40) %}{% set n.a = [n.a, n.a] %}{% endfor %}";
    let long = "it makes a text of more than 67108864 bytes";
    let rows = [
        (doubled, "n.a", long),
        (doubled, "n.a|tojson", long),
        (doubled, "n.a is lower", long),
        ("", "['x' * 1000000] * 100000", long),
        ("", "([0] * 100000000)|tojson", long),
        ("", "('x' * 100000000).join('a' * 1000)", long),
        ("", "(['x' * 1000000] * 100000)|join", long),
        ("", "([''] * 100000000)|join", "engine ran out of fuel"),
        ("", "''.join([''] * 100000000)", "engine ran out of fuel"),
        ("", "('\\t' * 100000).expandtabs(1000000)", long),
        ("", "1|tojson(indent=100000000000000)", long),
        ("", "[[[1] * 1000]]|tojson(indent='x' * 1000000)", long),
        ("", "([1] * 1000)|tojson(separators=('x' * 1000000, ':'))", long),
        ("", "('\\n' * 100000)|indent(1000000, blank=true)", long),
        ("", "'a'|indent(1000000000000)", long),
        ("", "'a'|center(1000000000000)", long),
        ("", "'a'.ljust(1000000000000, 'é')", long),
        ("", "'a'.zfill(1000000000000)", long),
        ("", "('a' * 100000).replace('', 'x' * 100000)", long),
        ("", "('a' * 100000)|replace('a', 'x' * 100000)", long),
        ("", "('<' * 100000000)|e", long),
    ];
    for (before, expression, expected) in rows {
        let source = format!("{before}{{{{ {expression} }}}}");
        let failure =
            compile(&source).render(&Conversation::new([]), 0, &TemplateOptions::default());
        assert_eq!(describe(&failure.expect_err(expression)), expected, "{expression}");
    }
}

#[test]
fn a_value_that_lies_too_deep_is_refused() {
    let deep = "{% set n = namespace(a=[]) %}{% for _ in range(COUNT) %}{% set n.a = [n.a] %}{% endfor %}{{ n.a|FILTER }}";
    for filter in ["string|length", "tojson|length"] {
        let source = deep.replace("FILTER", filter);
        check(&source.replace("COUNT", "256"), "514");
        let source = source.replace("COUNT", "257");
        let failure =
            compile(&source).render(&Conversation::new([]), 0, &TemplateOptions::default());
        let failure = describe(&failure.expect_err("it is deep"));
        assert_eq!(failure, "a value lies in more than 256 others");
    }
}

#[test]
fn what_walks_a_long_list_or_text_ends() {
    for source in [
        "{{ ([''] * 100000000).count(1) }}",
        "{{ ([''] * 100000000).index(1) }}",
        "{{ ([''] * 100000000).copy() }}",
    ] {
        let failure =
            compile(source).render(&Conversation::new([]), 0, &TemplateOptions::default());
        assert_eq!(describe(&failure.expect_err(source)), "engine ran out of fuel", "{source}");
    }
    check("{{ ('a' * 100000).strip('é' * 1000000 + 'a') }}", "");
}
